"""The working folder and the LM of a command."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from querywright.cli.options import JudgeLM, LimitedLM, LMOptions, OwnLM
from querywright.cli.show import note
from querywright.errors import InputError, OutageError, QuerywrightError
from querywright.models.keys import api_key

if TYPE_CHECKING:
    import dspy

    from querywright.models.budget import Budget
    from querywright.models.store import Store
    from querywright.models.usage import Ledger
    from querywright.optimize.artifacts.files import ArtifactManifest
    from querywright.retrieval.engines import CollectionRetriever

SLOW_SECONDS = 2.0
EMBEDDED = LMOptions()


@dataclass(slots=True)
class Workspace:
    """The working folder and the LM of one command."""

    home: Path
    store: Store
    ledger: Ledger
    lm: dspy.LM
    budget: Budget | None = None

    @classmethod
    def open(cls, home: Path | None, lm: LMOptions = EMBEDDED) -> Workspace:
        """Open the working folder and make the LM ready."""
        key = api_key(lm.api_key_env)
        from querywright.home import home as working_folder
        from querywright.models.budget import Budget
        from querywright.models.store import open_store
        from querywright.models.usage import Ledger

        folder = working_folder(home)
        # The re-encoded model and everything else that a library of ours writes goes to the same folder.
        os.environ["QUERYWRIGHT_HOME"] = str(folder.resolve())
        store, ledger = open_store(folder), Ledger()
        calls = lm.max_calls if isinstance(lm, LimitedLM) else None
        budget = None if calls is None else Budget(None, "the command", calls=calls)
        return cls(folder, store, ledger, _lm(store, ledger, lm, key, budget), budget)

    def another_lm(self, lm: LMOptions, max_calls: int | None = None) -> dspy.LM:
        """A second LM with the same store and ledger, and a limit of calls of its own."""
        from querywright.models.budget import Budget

        budget = None if max_calls is None else Budget(None, "another LM", calls=max_calls)
        return _lm(self.store, self.ledger, lm, api_key(lm.api_key_env), budget)

    def rewriter(self, folder: Path | None, *, keep: bool = False) -> dspy.LM | None:
        """The LM of a rewriter, with the same store, ledger and limit of calls; None where none is named.

        Args:
            folder: The rewriter's.
            keep: Whether a copy is kept in the working folder, for programs that are saved; the folder that was
                given is what runs, for its base may lie beside it. Default False.
        """
        if folder is None:
            return None
        from querywright.optimize.artifacts.rewriters import keep_rewriter, open_rewriter

        if keep and keep_rewriter(folder, self.home) is None:
            note(f"the rewriter {folder.name!r} is too large to be copied; give --rewriter with what is saved here")
        return open_rewriter(folder, store=self.store, ledger=self.ledger, budget=self.budget)

    def judge_lm(self, lm: LimitedLM, judge: JudgeLM) -> dspy.LM:
        """The LM of the judges: the first one, unless another is named or it is somewhere else."""
        other = judge.beside(lm)
        return self.lm if other is None else self.another_lm(other, lm.max_calls)

    def cost_line(self) -> str:
        """What all LM calls of the command cost."""
        total = self.ledger.total
        dollars = f"; {total.dollars:.4f} US dollars estimated" if total.dollars else ""
        return (
            f"LM calls: {total.calls} made, {total.saved} saved; {total.tokens} tokens; "
            f"{total.seconds:.0f} LM seconds{dollars}"
        )

    def retriever(self, collection: str, embedder: str, engine: str = "dense") -> CollectionRetriever:
        """Open a collection."""
        from querywright.models.embedder import resolve_embedder
        from querywright.retrieval.engines import LEXICAL, open_retriever

        return open_retriever(
            collection,
            engine=engine,
            embedder=None if engine in LEXICAL else resolve_embedder(embedder, store=self.store),
            home=self.home,
            progress=_when_slow(f"the BM25 index of {collection}"),
        )


def artifact_lm(artifact: Path | ArtifactManifest, lm: OwnLM, home: Path | None) -> dspy.LM | None:
    """The LM that was named; None for the artifact's own. An address or a key alone is for that one.

    Args:
        artifact: The artifact's folder, which is read where its LM must be known, or its manifest.
        lm: What was said of the LM.
        home: The working folder.
    """
    if not lm.is_given:
        return None
    if lm.lm is None and isinstance(artifact, Path):
        from querywright.optimize.artifacts.files import read_artifact

        artifact = read_artifact(artifact).manifest
    return Workspace.open(home, lm.instead_of("" if isinstance(artifact, Path) else artifact.lm)).lm


def _when_slow(what: str) -> Callable[[int, int], None]:
    """Progress that is silent for work of less than two seconds, and then says twice at most what is going on."""
    begin, said = time.monotonic(), False

    def update(done: int, total: int) -> None:
        nonlocal said
        seconds = time.monotonic() - begin
        if seconds < SLOW_SECONDS:
            return
        if done == total:
            note(f"{what}: built in {seconds:.0f} s, and kept")
        elif not said:
            note(f"{what}: building, {done} of {total} passages")
            said = True

    return update


def _lm(store: Store, ledger: Ledger, lm: LMOptions, key: str | None, budget: Budget | None) -> dspy.LM:
    from querywright.models.lm import resolve_lm

    if (lm.api_base or key) and (lm.lm == "embedded" or lm.lm.startswith("gguf:")):
        raise InputError(
            f"the LM {lm.lm!r} runs in this process and has no address and no key; with --api-base or --api-key-env "
            "name a remote one, such as --lm openai/MODEL"
        )
    return resolve_lm(lm.lm, store=store, ledger=ledger, budget=budget, api_base=lm.api_base, api_key=key)


@contextlib.contextmanager
def lm_failures() -> Iterator[None]:
    """Give an LM's failure that nothing caught as the end of the run, without a traceback."""
    from dspy.utils.exceptions import LMError

    try:
        yield
    except QuerywrightError:
        raise
    except LMError as error:
        raise OutageError(f"the LM did not answer: {error}; answers received so far are kept") from error

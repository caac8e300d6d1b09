"""The working folder and the LM of a command."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from querywright.cli.checks import check_judge_lm
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


@dataclass(slots=True)
class Workspace:
    """The working folder and the LM of one command."""

    home: Path
    store: Store
    ledger: Ledger
    lm: dspy.LM
    budget: Budget | None = None

    @classmethod
    def open(
        cls,
        home: Path | None,
        lm: str = "embedded",
        *,
        api_base: str | None = None,
        api_key_env: str | None = None,
        max_calls: int | None = None,
    ) -> Workspace:
        """Open the working folder and make the LM ready."""
        key = api_key(api_key_env)
        from querywright.home import home as working_folder
        from querywright.models.budget import Budget
        from querywright.models.store import open_store
        from querywright.models.usage import Ledger

        folder = working_folder(home)
        # The re-encoded model and everything else that a library of ours writes goes to the same folder.
        os.environ["QUERYWRIGHT_HOME"] = str(folder.resolve())
        store, ledger = open_store(folder), Ledger()
        budget = None if max_calls is None else Budget(None, "the command", calls=max_calls)
        return cls(folder, store, ledger, _lm(store, ledger, lm, api_base, key, budget), budget)

    def another_lm(self, lm: str, *, api_base: str | None, api_key_env: str | None, max_calls: int | None) -> dspy.LM:
        """A second LM with the same store and ledger, and a limit of calls of its own."""
        from querywright.models.budget import Budget

        budget = None if max_calls is None else Budget(None, "another LM", calls=max_calls)
        return _lm(self.store, self.ledger, lm, api_base, api_key(api_key_env), budget)

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

    def judge_lm(
        self, lm: str, judge: str | None, *, api_base: str | None, api_key_env: str | None, max_calls: int | None
    ) -> dspy.LM:
        """The LM of the judges: the first one, unless another is named or it is somewhere else.

        Args:
            lm: Name of the first LM.
            judge: Name of the judges' LM, or None.
            api_base: Address of the judges' LM.
            api_key_env: Variable with its key.
            max_calls: Limit of its calls.
        """
        check_judge_lm(judge, api_base, api_key_env)
        if judge is None or (judge == lm and not (api_base or api_key_env)):
            return self.lm
        return self.another_lm(judge, api_base=api_base, api_key_env=api_key_env, max_calls=max_calls)

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


def artifact_lm(
    artifact: Path | ArtifactManifest,
    lm: str | None,
    *,
    home: Path | None,
    api_base: str | None,
    api_key_env: str | None,
) -> dspy.LM | None:
    """The LM that was named; None for the artifact's own. An address or a key alone is for that one.

    Args:
        artifact: The artifact's folder, which is read where its LM must be known, or its manifest.
        lm: Name of an LM.
        home: The working folder.
        api_base: Address of the LM.
        api_key_env: Variable with its key.
    """
    found = artifact_workspace(artifact, lm, home=home, api_base=api_base, api_key_env=api_key_env)
    return None if found is None else found.lm


def artifact_workspace(
    artifact: Path | ArtifactManifest,
    lm: str | None,
    *,
    home: Path | None,
    api_base: str | None,
    api_key_env: str | None,
    max_calls: int | None = None,
) -> Workspace | None:
    """The working folder with the LM of ``artifact_lm``; None for the artifact's own LM. A limit alone is for that one.

    Args:
        artifact: As ``artifact_lm`` takes it, like all that follows.
        lm: Name of an LM.
        home: The working folder.
        api_base: Address of the LM.
        api_key_env: Variable with its key.
        max_calls: Limit of the calls of the LM and of what is opened beside it. Default None.
    """
    if lm is None and api_base is None and api_key_env is None and max_calls is None:
        return None
    if lm is None:
        from querywright.optimize.artifacts.files import read_artifact

        own = (read_artifact(artifact).manifest if isinstance(artifact, Path) else artifact).lm
        lm = "embedded" if own.startswith("embedded:") else own
    return Workspace.open(home, lm, api_base=api_base, api_key_env=api_key_env, max_calls=max_calls)


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


def _lm(store: Store, ledger: Ledger, lm: str, api_base: str | None, key: str | None, budget: Budget | None) -> dspy.LM:
    from querywright.models.lm import resolve_lm

    if (api_base or key) and (lm == "embedded" or lm.startswith("gguf:")):
        raise InputError(
            f"the LM {lm!r} runs in this process and has no address and no key; with --api-base or --api-key-env "
            "name a remote one, such as --lm openai/MODEL"
        )
    return resolve_lm(lm, store=store, ledger=ledger, budget=budget, api_base=api_base, api_key=key)


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

"""The workspace for a command or script: its folder, its store, and the LM with its ledger and budget."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from querywright.errors import InputError

if TYPE_CHECKING:
    import dspy

    from querywright.models.budget import Budget
    from querywright.models.circuit_breaker import Limits
    from querywright.models.store import Store
    from querywright.models.usage import Ledger

Tell = Callable[[str], object]


@dataclass(slots=True)
class Workspace:
    """A folder and an LM.

    Args:
        home: The folder.
        store: The cache of answers, vectors, and judgments.
        ledger: Records the cost of all LM calls.
        lm: The LM.
        budget: The limit on LM calls.
    """

    home: Path
    store: Store
    ledger: Ledger
    lm: dspy.LM
    budget: Budget | None = None

    @property
    def threads(self) -> int:
        """The number of questions to run in parallel to keep the LM busy."""
        from querywright.models.lm import engine_of

        return engine_of(self.lm).threads

    @classmethod
    def open(
        cls,
        home: str | Path | None = None,
        lm: str | dspy.LM = "embedded",
        *,
        api_base: str | None = None,
        api_key: str | None = None,
        max_calls: int | None = None,
        store: Store | None = None,
        budget: Budget | None = None,
        limits: Limits | None = None,
        keeps: bool = True,
        asks: bool = True,
    ) -> Workspace:
        """Open a workspace and its LM.

        Args:
            home: The folder. Default ``$QUERYWRIGHT_HOME`` or ``.querywright``.
            lm: The LM's name, or any ``dspy.LM``.
            api_base: URL of the LM's server.
            api_key: API key for the LM's service.
            max_calls: Maximum number of LM calls. Default: no limit.
            store: The cache of answers. Default: the store in the folder.
            budget: The limit on LM calls, instead of ``max_calls``.
            limits: Timeouts and retries for the LM and for every other LM in the workspace. Default: see
                ``resolve_lm``.
            keeps: Whether the folder must be writable. Default True.
            asks: Whether the LM will be called, so that its API key must be set. Default True.

        Raises:
            InputError: The folder cannot be created, or must be writable but is not.
            ModelError: The LM is unknown, or its file or package is missing.
        """
        from querywright.home import home as working_folder
        from querywright.home import is_read_only, named_home
        from querywright.models.budget import Budget
        from querywright.models.lm import engine_of
        from querywright.models.store import open_store
        from querywright.models.usage import Ledger

        folder = named_home(home)
        if keeps and is_read_only(working_folder(home)):
            raise InputError(
                f"the workspace {str(folder)!r} must be writable, because answers are cached in it; choose a different "
                "folder with home= or $QUERYWRIGHT_HOME"
            )
        # Other modules write to the same folder too, for example the re-encoded model.
        os.environ["QUERYWRIGHT_HOME"] = str(folder.resolve())
        store, ledger = store or open_store(folder), Ledger()
        if max_calls is not None:
            budget = Budget(None, "the command", calls=max_calls)
        opened = _lm(lm, api_base, api_key, asks, store=store, ledger=ledger, budget=budget, limits=limits)
        return cls(folder, engine_of(opened).store or store, engine_of(opened).ledger, opened, budget)

    def another_lm(self, lm: str | dspy.LM, *, api_base: str | None = None, api_key: str | None = None) -> dspy.LM:
        """Return an LM with the workspace's store, ledger, and call limit, or the workspace's LM if it is the same."""
        from querywright.models.lm import engine_of, writer_beside

        limits = engine_of(self.lm).limits
        found = _lm(lm, api_base, api_key, store=self.store, ledger=self.ledger, budget=self.budget, limits=limits)
        return writer_beside(self.lm, found, store=self.store) or self.lm

    def writer(self, given: dspy.LM | str | Path | None) -> dspy.LM | None:
        """Return the writer LM with the same store, ledger, and call limit, or None if it is the workspace's LM.

        Args:
            given: Any LM, its name, or the folder of a trained rewriter; None for the workspace's LM.
        """
        from querywright.models.lm import writer_beside

        return writer_beside(self.lm, given)

    def check_key(self) -> None:
        """Raise an error if the LM needs an API key that is missing."""
        from querywright.models.lm import with_key

        with_key(self.lm)

    def retriever(
        self,
        searched: Any,
        embedder: Any = "embedded",
        engine: str = "dense",
        where: Mapping[str, Any] | None = None,
    ) -> Any:
        """Open a collection with an engine, or any other retriever.

        Args:
            searched: A collection's name, a Chroma collection, its address, or any retriever.
            embedder: The embedder for a collection, or its name.
            engine: The engine that searches a collection, also one that a retriever has open. Default ``dense``.
            where: A filter on a collection's metadata. Default: every passage.

        Raises:
            InputError: The retriever cannot be opened, or there is a filter but the retriever is not a collection.
        """
        from querywright.models.embedder import resolve_embedder
        from querywright.retrieval.callable import as_retriever, is_collection
        from querywright.retrieval.engines import LEXICAL, open_retriever, with_engine

        if not (isinstance(searched, str) or is_collection(searched)):
            found: Any = as_retriever(searched)
            if where:
                raise InputError(
                    f"where= works only with a collection, but got the retriever {found!r:.80}; pass a collection's "
                    "name, or apply the filter in the retriever"
                )
            return with_engine(found, engine)
        if engine in LEXICAL:
            embedder = None
        return open_retriever(
            searched,
            engine=engine,
            embedder=resolve_embedder(embedder, store=self.store) if isinstance(embedder, str) else embedder,
            home=self.home,
            where=where,
        )

    def cost_line(self) -> str:
        """Return a line with the cost of all LM calls; empty if there were none."""
        total = self.ledger.total
        if not total.asked:
            return ""
        dollars = f"; estimated cost: ${total.dollars:.4f}" if total.dollars else ""
        made = "from the recording" if self.lm.model.startswith("recording:") else "made"
        waited = f"; {total.seconds:.0f} s of LM time, summed over parallel calls" * (total.seconds >= 1)
        return f"LM calls: {total.calls} {made} ({total.saved} cached); {total.tokens} tokens{waited}{dollars}"


def _lm(lm: Any, api_base: str | None, api_key: str | None, asks: bool = True, **shared: Any) -> dspy.LM:
    from querywright.models.lm import as_lm, resolve_lm, with_key

    if not isinstance(lm, str):
        return as_lm(lm, **shared)
    if (api_base or api_key) and (lm == "embedded" or lm.startswith(("gguf:", "recording:"))):
        raise InputError(
            f"the LM {lm!r} runs in this process, so it has no URL and no API key; to use api_base= or api_key=, "
            "choose a remote LM, such as openai/MODEL"
        )
    named = resolve_lm(lm, api_base=api_base, api_key=api_key, **shared)
    return with_key(named) if asks else named

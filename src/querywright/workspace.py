"""The working folder of a command or script: its store, the LMs that share a ledger, and the collections in it."""

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
    """A working folder and an LM.

    Args:
        home: The folder.
        store: Where answers, vectors and judgements are kept.
        ledger: What all LMs cost.
        lm: The LM.
        budget: What its calls are paid from.
    """

    home: Path
    store: Store
    ledger: Ledger
    lm: dspy.LM
    budget: Budget | None = None

    @property
    def threads(self) -> int:
        """Questions under way at a time that keep the LM busy."""
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
        """Open the working folder and make the LM ready.

        Args:
            home: The folder. Default ``$QUERYWRIGHT_HOME`` or ``.querywright``.
            lm: Its name, or any ``dspy.LM``.
            api_base: Address of its server.
            api_key: Key of its service.
            max_calls: Calls that it may be asked. Default any number.
            store: Where answers are kept. Default: the folder.
            budget: What its calls are paid from, in place of ``max_calls``.
            limits: How patient it is asked, and every LM beside it. Default: as ``resolve_lm`` and ``as_lm`` have it.
            keeps: Whether it must be possible to keep what is answered. Default True.
            asks: Whether the LM is asked, so that a key that it needs must be there. Default True.

        Raises:
            InputError: The folder cannot be made, or be written where it has to be.
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
                f"the working folder {str(folder)!r} cannot be written, and what is answered is kept there; name "
                "another one: home= or $QUERYWRIGHT_HOME"
            )
        # The re-encoded model and everything else that a library of ours writes goes to the same folder.
        os.environ["QUERYWRIGHT_HOME"] = str(folder.resolve())
        store, ledger = store or open_store(folder), Ledger()
        if max_calls is not None:
            budget = Budget(None, "the command", calls=max_calls)
        opened = _lm(lm, api_base, api_key, asks, store=store, ledger=ledger, budget=budget, limits=limits)
        return cls(folder, engine_of(opened).store or store, engine_of(opened).ledger, opened, budget)

    def another_lm(self, lm: str | dspy.LM, *, api_base: str | None = None, api_key: str | None = None) -> dspy.LM:
        """A second LM with the same store, ledger and limit of calls; the first where it is that one."""
        from querywright.models.lm import engine_of, writer_beside

        limits = engine_of(self.lm).limits
        found = _lm(lm, api_base, api_key, store=self.store, ledger=self.ledger, budget=self.budget, limits=limits)
        return writer_beside(self.lm, found, store=self.store) or self.lm

    def writer(self, given: dspy.LM | str | Path | None) -> dspy.LM | None:
        """The LM that writes, with the same store, ledger and limit of calls; None where it is the LM.

        Args:
            given: Any LM, its name or the folder of a trained rewriter; None for the LM.
        """
        from querywright.models.lm import writer_beside

        return writer_beside(self.lm, given)

    def check_key(self) -> None:
        """Raise if the LM needs a key that is missing."""
        from querywright.models.lm import with_key

        with_key(self.lm)

    def retriever(
        self,
        searched: Any,
        embedder: Any = "embedded",
        engine: str = "dense",
        where: Mapping[str, Any] | None = None,
    ) -> Any:
        """Open what is searched with an engine.

        Args:
            searched: A collection's name; a collection of Chroma, or its place; or anything that searches.
            embedder: The embedder, or its name.
            engine: What a collection is searched with. Default dense.
            where: A filter over metadata, for a collection. Default: every passage.

        Raises:
            InputError: It cannot be opened, or the filter is not for it.
        """
        from querywright.models.embedder import resolve_embedder
        from querywright.retrieval.callable import as_retriever, is_collection
        from querywright.retrieval.chroma import ForeignChromaRetriever
        from querywright.retrieval.engines import LEXICAL, open_retriever

        if not (isinstance(searched, str) or is_collection(searched)):
            found: Any = as_retriever(searched)
            if where:
                raise InputError(
                    f"a filter is for a collection, its name or its place, but got {found!r:.80}; give it to that: "
                    "where=..."
                )
            own = getattr(found, "name", None)
            if engine != "dense" and isinstance(found, ForeignChromaRetriever):
                searched = found
            elif engine != "dense" and found.kind == "dense" and isinstance(own, str):
                searched, embedder, where = own, found.embedder, getattr(found, "where", None)
            else:
                return found
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
        """Return what all LM calls cost; empty if there were none."""
        total = self.ledger.total
        if not total.asked:
            return ""
        dollars = f"; {total.dollars:.4f} US dollars estimated" if total.dollars else ""
        made = "from the recording" if self.lm.model.startswith("recording:") else "made"
        waited = f"; {total.seconds:.0f} s of LM calls in total, parallel calls added up" * (total.seconds >= 1)
        return f"LM calls: {total.calls} {made} ({total.saved} cached); {total.tokens} tokens{waited}{dollars}"


def _lm(lm: Any, api_base: str | None, api_key: str | None, asks: bool = True, **shared: Any) -> dspy.LM:
    from querywright.models.lm import as_lm, resolve_lm, with_key

    if not isinstance(lm, str):
        return as_lm(lm, **shared)
    if (api_base or api_key) and (lm == "embedded" or lm.startswith(("gguf:", "recording:"))):
        raise InputError(
            f"the LM {lm!r} answers in this process and has no address and no key; with api_base= or api_key= "
            "name a remote one, such as openai/MODEL"
        )
    named = resolve_lm(lm, api_base=api_base, api_key=api_key, **shared)
    return with_key(named) if asks else named

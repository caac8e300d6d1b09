"""What the commands share: options, the working folder, and checks that are made before anything is spent."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from querywright.cli.show import note
from querywright.data.hub import names_of
from querywright.errors import ArtifactError, InputError, OutageError, QuerywrightError
from querywright.models.keys import api_key

if TYPE_CHECKING:
    import dspy

    from querywright.data.types import Question
    from querywright.models.gate import Limits
    from querywright.models.ledger import Ledger
    from querywright.models.store import Store
    from querywright.optimize.artifacts.files import Manifest
    from querywright.retrieval.engines import CollectionRetriever
    from querywright.retrieval.rerank import CrossEncoderReranker

SLOW_SECONDS = 2.0
PROBE_BYTES = 1 << 20

QuestionsArgument = Annotated[
    str,
    typer.Argument(
        metavar="QUESTIONS",
        help="A file or folder of labelled questions (BEIR, AutoRAG, FlashRAG and Ragas too), sample, or hf:NAME: "
        f"a dataset of the hub, or {names_of('questions')}.",
    ),
]
HomeOption = Annotated[
    Path | None,
    typer.Option(
        "--home",
        metavar="FOLDER",
        help="Working folder. Default: $QUERYWRIGHT_HOME, or .querywright here.",
        show_default=False,
    ),
]
LMOption = Annotated[
    str,
    typer.Option("--lm", metavar="NAME", help="embedded, gguf:PATH, or a DSPy model string (openai/...)."),
]
ApiBaseOption = Annotated[
    str | None,
    typer.Option("--api-base", metavar="URL", help="Address of an OpenAI-compatible server.", show_default=False),
]
KeyOption = Annotated[
    str | None,
    typer.Option("--api-key-env", metavar="NAME", help="Environment variable that holds the key.", show_default=False),
]
EmbedderOption = Annotated[
    str,
    typer.Option("--embedder", metavar="NAME", help="embedded, or a sentence-transformers name or path."),
]
EngineOption = Annotated[
    str,
    typer.Option("--engine", metavar="NAME", help="dense, bm25, hybrid (both), questions or expanded."),
]
TechniqueEngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="NAME",
        help="dense, bm25, hybrid (both), questions or expanded. Default: the technique's own, or dense.",
        show_default=False,
    ),
]
RerankerOption = Annotated[
    str | None,
    typer.Option(
        "--reranker",
        metavar="NAME",
        help="A cross-encoder's name or path, for techniques that rerank.",
        show_default=False,
    ),
]
RewriterOption = Annotated[
    Path | None,
    typer.Option(
        "--rewriter",
        metavar="FOLDER",
        help="A trained rewriter, which techniques ask in place of the LM, and readers do not. With an artifact that "
        "was compiled with a rewriter: instead of that one; one that was compiled without keeps none beside others, "
        "and takes none alone.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output.")]
ColumnOption = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="OURS=THEIRS",
        help="The data's name of a column, such as text=contents. Repeatable.",
        show_default=False,
    ),
]
LimitOption = Annotated[
    int | None,
    typer.Option("--limit", metavar="N", min=1, help="Read the first N rows.", show_default=False),
]
SplitOption = Annotated[
    str | None, typer.Option("--split", metavar="NAME", help="Split of a dataset or folder.", show_default=False)
]
KnobOption = Annotated[
    list[str] | None,
    typer.Option("--knob", metavar="NAME=VALUE", help="Such as max_passages=10. Repeatable.", show_default=False),
]
CollectionOption = Annotated[
    str | None,
    typer.Option("--collection", metavar="NAME", help="The collection that is searched.", show_default=False),
]
MetricOption = Annotated[
    list[str] | None,
    typer.Option(
        "--metric",
        metavar="NAME",
        help="Repeatable. Default: accuracy, and by evidence where it is labelled.",
        show_default=False,
    ),
]
JudgeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--judge",
        metavar="NAME",
        help="A judge (querywright judge list) or a saved one's path. Repeatable.",
        show_default=False,
    ),
]
JudgeLMOption = Annotated[
    str | None,
    typer.Option(
        "--judge-lm",
        metavar="NAME",
        help="The LM that judges, usefulness if no --judge is given. Default: --lm, with its address and key.",
        show_default=False,
    ),
]
WriterJudgeLMOption = Annotated[
    str | None,
    typer.Option(
        "--judge-lm",
        metavar="NAME",
        help="The LM that judges. Default: --lm, with its address and key.",
        show_default=False,
    ),
]
JudgeApiBaseOption = Annotated[
    str | None,
    typer.Option("--judge-api-base", metavar="URL", help="Address of the judge's server.", show_default=False),
]
JudgeKeyOption = Annotated[
    str | None,
    typer.Option(
        "--judge-api-key-env",
        metavar="NAME",
        help="Environment variable that holds the judge's key.",
        show_default=False,
    ),
]
GuidelinesOption = Annotated[
    Path | None,
    typer.Option(
        "--guidelines",
        metavar="FILE",
        help="Points that answers are held against, for --judge coverage.",
        show_default=False,
    ),
]
FailuresOption = Annotated[
    float,
    typer.Option("--max-failures", metavar="SHARE", min=0.0, max=1.0, help="Share of questions that may fail, 0 to 1."),
]
ReaderOption = Annotated[
    str,
    typer.Option("--reader", metavar="NAME", help="auto, multiple_choice, short_answer, grounded or none."),
]
ThreadsOption = Annotated[int, typer.Option("--threads", metavar="N", min=1, help="Questions under way at a time.")]
CallsOption = Annotated[
    int | None,
    typer.Option("--max-calls", metavar="N", min=1, help="Stop after N LM calls.", show_default=False),
]


@dataclass(slots=True)
class Workspace:
    """The working folder and the LM of one command."""

    home: Path
    store: Store
    ledger: Ledger
    lm: dspy.LM
    limits: Limits | None = None

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
        from querywright.models.gate import JointCalls, Limits
        from querywright.models.ledger import Ledger
        from querywright.models.store import open_store

        folder = working_folder(home)
        # The re-encoded model and everything else that a library of ours writes goes to the same folder.
        os.environ["QUERYWRIGHT_HOME"] = str(folder.resolve())
        store, ledger = open_store(folder), Ledger()
        limits = Limits(purse=None if max_calls is None else JointCalls(max_calls))
        return cls(folder, store, ledger, _lm(store, ledger, lm, api_base, key, limits), limits)

    def another_lm(self, lm: str, *, api_base: str | None, api_key_env: str | None, max_calls: int | None) -> dspy.LM:
        """A second LM with the same store and ledger, and a limit of calls of its own."""
        from querywright.models.gate import Limits

        return _lm(self.store, self.ledger, lm, api_base, api_key(api_key_env), Limits(max_calls=max_calls))

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
        return open_rewriter(folder, store=self.store, ledger=self.ledger, limits=self.limits)

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
    artifact: Path | Manifest,
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
    artifact: Path | Manifest,
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


def check_judge_lm(judge: str | None, api_base: str | None, api_key_env: str | None) -> None:
    """Raise when the judges' LM is given an address or a key, but no name."""
    if judge is None and (api_base or api_key_env):
        raise InputError("--judge-api-base and --judge-api-key-env are of the judge's LM; name it with --judge-lm")


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


def check_engine(engine: str) -> str:
    """The engine of that name; raise when there is none."""
    from querywright.retrieval.engines import check_engine as check

    return check(engine)


def engine_for(technique: str, named: str | None) -> str | None:
    """The engine that a technique searches with.

    Args:
        technique: Its name.
        named: The engine that was named for it; None when none was.

    Returns:
        The technique's own, else the named one; None when there is neither.

    Raises:
        InputError: The technique has another engine of its own.
    """
    from querywright.programs import technique_class

    own = technique_class(technique).ENGINE
    if own is not None and named not in (None, own):
        raise InputError(f"{technique} searches with the engine {own}, not with {named}; leave the engine out")
    return own or named


def check_reranker(technique: str, reranker: str | None) -> None:
    """Raise when a reranker is named that the technique would not ask, or that there cannot be."""
    from querywright.programs import technique_class

    reranks = technique_class(technique).USES_RERANKER
    if reranker is None:
        return
    if not reranks:
        raise InputError(f"{technique} does not rerank; leave --reranker out, or use a technique that does")
    from querywright.retrieval.rerank import resolve_reranker

    resolve_reranker(reranker)


def open_reranker(name: str | None) -> CrossEncoderReranker | None:
    """Load the reranker of that name, if one is named, so that a missing model is told before anything is spent."""
    if name is None:
        return None
    from querywright.retrieval.rerank import resolve_reranker

    reranker = resolve_reranker(name)
    reranker.load()
    return reranker


def check_rewriter(technique: str, rewriter: Path | None) -> None:
    """Raise when a rewriter is named that the technique would not ask, or that is no folder of one."""
    if rewriter is None:
        return
    from querywright.programs import check_takes_rewriter, technique_class

    check_takes_rewriter(technique_class(technique))
    from querywright.models.rewriters import read_rewriter

    read_rewriter(rewriter)


def note_unlearnt(rewriter: Path | None, techniques: Iterable[str]) -> None:
    """Say, in one line, which techniques ask a rewriter that did not learn their prompts.

    Args:
        rewriter: Its folder; nothing is said without one.
        techniques: Names of those that ask it; one that writes nothing asks nobody, and is left out.
    """
    if rewriter is None:
        return
    from querywright.models.rewriters import read_rewriter
    from querywright.programs import takes_rewriter, technique_class

    found = read_rewriter(rewriter)
    strange = sorted({name for name in techniques if takes_rewriter(technique_class(name))} - set(found.techniques))
    if strange:
        note(
            f"the rewriter {found.name} learnt the prompts of {', '.join(found.techniques)}, and not of "
            f"{', '.join(strange)}: measure it there before you rely on it (querywright rewriter evaluate)"
        )


def _lm(store: Store, ledger: Ledger, lm: str, api_base: str | None, key: str | None, limits: Limits) -> dspy.LM:
    from querywright.models.lm import resolve_lm

    if (api_base or key) and (lm == "embedded" or lm.startswith("gguf:")):
        raise InputError(
            f"the LM {lm!r} runs in this process and has no address and no key; with --api-base or --api-key-env "
            "name a remote one, such as --lm openai/MODEL"
        )
    return resolve_lm(lm, store=store, ledger=ledger, limits=limits, api_base=api_base, api_key=key)


def pairs(values: Sequence[str] | None, option: str) -> dict[str, str]:
    """``NAME=VALUE`` options as a mapping."""
    found: dict[str, str] = {}
    for value in values or ():
        name, separator, rest = value.partition("=")
        name = name.strip()
        if not separator or not name or not rest.strip():
            raise InputError(f"{option} takes NAME=VALUE, but got {value!r}")
        if name in found:
            raise InputError(f"{option} {name} is given twice: {found[name]!r} and {rest.strip()!r}")
        found[name] = rest.strip()
    return found


def knob_values(technique: str, given: Mapping[str, str], *, strict: bool = True) -> dict[str, Any]:
    """Knob options in the types of a technique.

    Args:
        technique: Its name.
        given: Texts by knob.
        strict: Refuse a knob that the technique does not have; otherwise leave it out.
    """
    from querywright.programs import technique_class
    from querywright.programs.knobs import Knobs

    knobs = Knobs(technique_class(technique).KNOBS)
    return {name: knobs.knob(name).parse(text) for name, text in given.items() if strict or name in knobs}


def check_reader(reader: str) -> None:
    """Raise when there is no such reader."""
    from querywright.programs import READERS

    known = ["auto", *READERS, "none"]
    if reader not in known:
        raise InputError(f"unknown reader {reader!r}; the readers are: {', '.join(known)}")


def reader_for(questions: Sequence[Question], reader: str) -> str | None:
    """The reader of that name; ``auto`` chooses between options where every question has them."""
    if reader == "none":
        return None
    if reader != "auto":
        return reader
    return "multiple_choice" if all(question.options for question in questions) else "short_answer"


def of_grounded(reader: str | None) -> list[str]:
    """What must be known of closed book where it has this reader."""
    from querywright.programs import READERS

    if reader is None or not READERS[reader].GROUNDED:
        return []
    return [f"the reader {reader} declines where it has no passages: closed book tells nothing of the LM"]


def check_folder(target: Path, option: str) -> None:
    """Raise when an artifact could not be written there, before anything is spent.

    Args:
        target: The artifact's folder; it need not be there.
        option: The option that named it.
    """
    if target.is_dir():
        if not (target / "manifest.json").is_file() and any(target.iterdir()):
            raise ArtifactError(f"{target.name!r} exists and is no artifact; give another folder with {option}")
    elif target.exists() or target.is_symlink():
        raise ArtifactError(f"{target.name!r} is a file, but an artifact is a folder; give another {option}")
    check_place(target.absolute().parent, target.name, option)


def check_results(target: Path, option: str) -> None:
    """Raise when results could not be written there, before anything is spent.

    Args:
        target: The folder; it need not be there. One that holds anything holds earlier results.
        option: The option that named it.
    """
    from querywright.optimize.comparison import JOURNAL

    if target.is_dir():
        if not (target / JOURNAL).is_file() and any(target.iterdir()):
            raise InputError(f"{target.name!r} holds files that are no results; give another folder with {option}")
        check_place(target.absolute(), target.name, option)
    elif target.exists() or target.is_symlink():
        raise InputError(f"{target.name!r} is a file, but results are a folder; give another {option}")
    else:
        check_place(target.absolute().parent, target.name, option)


def check_file(target: Path, option: str, *, parents: bool = False) -> None:
    """Raise when a file could not be written there, before anything is spent.

    Args:
        target: The file; it need not be there.
        option: The option that named it.
        parents: Whether its folder is made when it is missing. Default False.
    """
    if target.is_dir():
        raise InputError(f"{target.name!r} is a folder; give a file with {option}")
    if not parents and not target.absolute().parent.is_dir():
        raise InputError(f"there is no folder {os.fspath(target.parent)!r} for {option} {target.name}; make it first")
    if target.exists() and not os.access(target, os.W_OK):
        raise InputError(f"{target.name!r} cannot be written; give another file with {option}")
    if target.is_file() or not target.exists():  # a device or a pipe has no room of its own
        check_place(target.absolute().parent, target.name, option)


def check_place(folder: Path, name: str, option: str) -> None:
    """Raise when a megabyte cannot be written into the folder, or into the nearest one above it that is there.

    Args:
        folder: The folder.
        name: What is to be written into it.
        option: The option that named it.
    """
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise InputError(
            f"{name!r} cannot be written into {folder.name or os.fspath(folder)!r}: {error.strerror}; "
            f"give another place with {option}, or make it writable or make room. Nothing was asked yet"
        ) from error


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

"""The options that several commands take, declared once: a command takes a group as one argument and passes it on.

The docstring of a group, or of a command, is the help of its options.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter
from cyclopts.validators import Number

from querywright.cli.show import err, out
from querywright.data.hub import names_of
from querywright.errors import InputError
from querywright.models.keys import api_key
from querywright.workspace import Workspace

if TYPE_CHECKING:
    from querywright.data.types import Question
    from querywright.models.circuit_breaker import Limits
    from querywright.optimize.artifacts.files import ArtifactManifest


def checked(look: str) -> Parameter:
    """Return a parameter whose names MODULE:FUNCTION checks before the command runs; it raises ``InputError``."""

    def validate(_: Any, value: Any) -> None:
        module, _, function = look.partition(":")
        look_at = getattr(import_module(f"querywright.{module}"), function)
        for one in [value] if isinstance(value, str) else value or ():
            look_at(one)

    return Parameter(validator=validate)


DEFAULTS = Parameter(negative=())
"""No option has a ``--no-`` form."""

Flag = Annotated[bool, Parameter(show_default=False)]
Name = Annotated[str, Parameter(metavar="NAME")]
Names = Annotated[tuple[str, ...], Parameter(metavar="NAME", show_default=False)]
Url = Annotated[str, Parameter(metavar="URL")]
Folder = Annotated[Path, Parameter(metavar="FOLDER")]
File = Annotated[Path, Parameter(metavar="FILE")]
OutFolder = Annotated[Path, Parameter(name="--out", metavar="FOLDER")]
OutFile = Annotated[Path, Parameter(name="--out", metavar="FILE")]
Integer = Annotated[int, Parameter(metavar="N")]
Whole = Annotated[int, Parameter(metavar="N", validator=Number(gte=0))]
Count = Annotated[int, Parameter(metavar="N", validator=Number(gte=1))]
Share = Annotated[float, Parameter(metavar="SHARE", validator=Number(gte=0, lte=1))]
Digest = Annotated[str, Parameter(metavar="SHA256")]
Columns = Annotated[tuple[str, ...], Parameter(metavar="OURS=THEIRS", show_default=False)]
Json = Annotated[
    bool,
    Parameter(
        name="--json", show_default=False, group="Output", help="Print JSON, and nothing else, on standard output."
    ),
]
Log = Annotated[
    str | None,
    Parameter(
        name="--log", metavar="mlflow[:URI]", group="Output",
        help="Log params, metrics, files and the report as MLflow runs, at URI or $MLFLOW_TRACKING_URI.",
    ),
]  # fmt: skip
Arms = Annotated[tuple[str, ...], Parameter(metavar="ARM...", show_default=False), checked("arms:check_arm")]
Technique = Annotated[str, checked("technique_names:check_technique")]
Engine = Annotated[Name, checked("retrieval.engines:check_engine")]
Reader = Annotated[
    Name, checked("arms:check_reader"),
    Parameter(help="auto, multiple_choice, short_answer, reasoning, grounded, long_answer or none."),
]  # fmt: skip
Embedder = Annotated[Name, Parameter(help="embedded, or a sentence-transformers name or path.")]
KNOWN_JUDGE = checked("optimize.judge_files:resolve_judge")
JudgeName = Annotated[Name, KNOWN_JUDGE]
Verbose = Annotated[
    bool, Parameter(show_default=False, group="Output", help="Print all columns, and a sentence a comparison.")
]
Questions = Annotated[
    str,
    Parameter(
        name="--data",
        metavar="QUESTIONS",
        help="A file or folder of labeled questions (BEIR, AutoRAG, FlashRAG and Ragas too), sample, sample-hard, or "
        f"hf:NAME: a dataset of the hub, or {names_of('questions')}.",
    ),
]


def make_app(name: str, help: str, **settings: Any) -> App:
    """A command that has commands."""
    return App(
        name=name, help=help, default_parameter=DEFAULTS, help_format="markdown", console=out, error_console=err,
        result_action="return_value", suppress_keyboard_interrupt=False, **settings,
    )  # fmt: skip


def chosen(group: Any) -> dict[str, Any]:
    """Return the options of a group that differ from their defaults, by name, without those in ``_OF_A_RUN``."""
    found: dict[str, Any] = {}
    for one in fields(group):
        value = getattr(group, one.name)
        if is_dataclass(value):
            found |= chosen(value)
        elif one.name not in _OF_A_RUN and value != one.default:
            name = "data" if one.name == "source" else one.name
            found[name] = [*map(str, value)] if isinstance(value, tuple) else str(value)
    return found


def typed(command: str, *arguments: str, **options: Any) -> str:
    """A command as it is typed, from options as ``chosen`` gives them."""
    words = [word for name, value in options.items() for each in (value if isinstance(value, list) else [value])
             for word in (f"--{name.replace('_', '-')}", str(each))]  # fmt: skip
    return shlex.join(["querywright", command, *arguments, *words])


_OF_A_RUN = {
    "home", "as_json", "log", "verbose", "threads", "max_failures", "max_calls", "timeout", "max_unreadable",
    "api_base", "api_key_env", "writer_api_base", "writer_api_key_env", "judge_api_base",
    "judge_api_key_env",
}  # fmt: skip
"""Options that say where and how patiently a run asks, and not what; addresses may hold a password."""


@Parameter(name="*", group="LM")
@dataclass(frozen=True)
class LMOptions:
    """The LM.

    Args:
        lm: embedded, gguf:PATH, recording:FILE, or a DSPy model string (openai/...). Default: embedded, or an
            artifact's own.
        api_base: Address of an OpenAI-compatible server.
        api_key_env: Environment variable that holds the key.
        max_calls: Stop after N LM calls.
        timeout: Seconds per attempt at a remote LM, to the end of its answer; up to a week. Default: 60.
        max_unreadable: Share of its answers that may be unreadable, 0 to less than 1. Default: 0.3.
        max_tokens: Tokens of a remote LM's answer at most, thinking included. Default: 1000, or 16000 for OpenAI's
            reasoning models.
    """

    lm: Name | None = None
    api_base: Url | None = None
    api_key_env: Name | None = None
    max_calls: Count | None = None
    timeout: Annotated[float | None, Parameter(metavar="SECONDS")] = None
    max_unreadable: Annotated[float | None, Parameter(metavar="SHARE")] = None
    max_tokens: Count | None = None

    @property
    def limits(self) -> Limits:
        """The limits of calls to this LM and to every other LM of the command."""
        from querywright.models.circuit_breaker import Limits

        return Limits.where(timeout=self.timeout, max_unreadable=self.max_unreadable, max_tokens=self.max_tokens)

    @property
    def given(self) -> dict[str, Any]:
        """As a workspace takes it."""
        return {
            "lm": self.lm or "embedded", "api_base": self.api_base, "api_key": api_key(self.api_key_env),
            "max_calls": self.max_calls, "limits": self.limits,
        }  # fmt: skip

    def open(
        self, home: Path | None, threads: int | None = None, *, keeps: bool = True, asks: bool = True
    ) -> Workspace:
        """Open the workspace with this LM; a read-only workspace only if nothing must be kept.

        If the LM is not asked, it needs no key.
        """
        given = {**self.given, "limits": replace(self.limits, at_once=threads)}
        return Workspace.open(home, **given, keeps=keeps, asks=asks)

    def beside(self, workspace: Workspace) -> Any:
        """This LM as a second one of a workspace, which both are paid from."""
        return workspace.another_lm(self.lm or "embedded", api_base=self.api_base, api_key=api_key(self.api_key_env))

    def for_artifact(self, artifact: Path | ArtifactManifest, home: Path | None) -> Any:
        """Return the LM for an artifact; None for the artifact's LM if no option names another.

        An address, a key or a limit alone applies to the artifact's LM, and the artifact is read to find its name.
        """
        from querywright.optimize.artifacts.files import read_artifact
        from querywright.optimize.artifacts.load import own_lm

        if self == LMOptions():
            return None
        if self.lm is not None:
            return self.open(home, keeps=False).lm
        manifest = read_artifact(artifact).manifest if isinstance(artifact, Path) else artifact
        asked = replace(self, lm=own_lm(manifest.lm, "lm", api_base=self.api_base))
        return asked.open(home, keeps=False).lm


@Parameter(name="*", group="LM")
@dataclass(frozen=True)
class WriterLM:
    """The LM that writes.

    Args:
        writer_lm: What techniques ask before --lm reads: any LM, or a trained rewriter's folder. Default: --lm, or an
            artifact's own.
        writer_api_base: Address of the writer's server.
        writer_api_key_env: Environment variable that holds the writer's key.
    """

    writer_lm: Name | None = None
    writer_api_base: Url | None = None
    writer_api_key_env: Name | None = None

    def beside(self, lm: LMOptions) -> Any:
        """As ``writer_lm=`` is given: a name, or an LM as patient as this one where it has an address or a key."""
        from querywright.models.lm import resolve_lm, with_key

        if not (self.writer_api_base or self.writer_api_key_env):
            return self.writer_lm
        if self.writer_lm is None:
            raise InputError("--writer-api-base and --writer-api-key-env are of the writer; name it with --writer-lm")
        key = api_key(self.writer_api_key_env)
        return with_key(resolve_lm(self.writer_lm, api_base=self.writer_api_base, api_key=key, limits=lm.limits))


@Parameter(name="*", group="Judge")
@dataclass(frozen=True)
class JudgeLM:
    """The LM that judges.

    Args:
        judge_lm: The LM that judges. Default: --lm, with its address and key.
        judge_api_base: Address of the judge's server.
        judge_api_key_env: Environment variable that holds the judge's key.
    """

    judge_lm: Name | None = None
    judge_api_base: Url | None = None
    judge_api_key_env: Name | None = None

    def beside(self, lm: LMOptions) -> LMOptions | None:
        """Return the LM of the judges; None if they use the same LM as the rest."""
        elsewhere = bool(self.judge_api_base or self.judge_api_key_env)
        if self.judge_lm is None and elsewhere:
            raise InputError("--judge-api-base and --judge-api-key-env are of the judge's LM; name it with --judge-lm")
        if not elsewhere and self.judge_lm in (None, lm.lm or "embedded"):
            return None
        return LMOptions(self.judge_lm, self.judge_api_base, self.judge_api_key_env)

    def open(self, workspace: Workspace, lm: LMOptions) -> Any:
        """Return the LM of the judges, which may be the LM of the workspace; None if it was not named."""
        other = self.beside(lm)
        if other is None:
            return None if self.judge_lm is None else workspace.lm
        return other.beside(workspace)


@dataclass(frozen=True)
class Judges(JudgeLM):
    """Judges and their LM.

    Args:
        judge_lm: The LM that judges, usefulness if no --judge is given. Default: --lm, with its address and key.
        judge: A judge (querywright judge list) or a saved one's path. Repeatable.
    """

    judge: Annotated[Names, KNOWN_JUDGE] = ()


@dataclass(frozen=True)
class Judging(Judges):
    """Judges, their LM, and the guidelines for answers.

    Args:
        guidelines: Points that answers are compared with, for --judge coverage.
    """

    guidelines: File | None = None


@Parameter(name="*", group="Data")
@dataclass(frozen=True)
class RowOptions:
    """How a file, folder or dataset is read.

    Args:
        column: The data's name of a column, such as text=contents. Repeatable.
        limit: Read the first N rows.
        split: Split of a dataset or folder.
    """

    column: Columns = ()
    limit: Count | None = None
    split: Name | None = None

    @property
    def given(self) -> dict[str, Any]:
        """As the readers take it."""
        from querywright.arms import pairs

        return {"columns": pairs(self.column, "--column"), "limit": self.limit, "split": self.split}


@dataclass(frozen=True, kw_only=True)
class DataOptions(RowOptions):
    """The questions, and how they are read.

    Args:
        labels: Labels of passages: what judge label wrote and people corrected, or TREC qrels (.qrels).
    """

    source: Questions
    labels: File | None = None

    @property
    def given(self) -> dict[str, Any]:
        """As the readers take it."""
        return {**super().given, "labels": self.labels}

    def questions(self, *, multiple_choice: bool | str = False) -> list[Question]:
        """Read the questions; whether every one of them must have options, or what needs them."""
        from querywright.data import read_questions

        return read_questions(self.source, **self.given, multiple_choice=multiple_choice)


@Parameter(name="*", group="Search")
@dataclass(frozen=True)
class Helpers:
    """Models that a technique asks.

    Args:
        reranker: A cross-encoder's name or path, for techniques that rerank.
    """

    reranker: Name | None = None
    writer: WriterLM = WriterLM()

    def given(self, lm: LMOptions) -> dict[str, Any]:
        """Return the arguments of a program that uses this LM."""
        return {"reranker": self.reranker, "writer_lm": self.writer.beside(lm)}


@Parameter(name="*", group="Search")
@dataclass(frozen=True)
class SearchOptions:
    """What a technique searches with.

    Args:
        embedder: embedded, or a sentence-transformers name or path; prompts as NAME?query=...&document=...
        engine: dense, bm25, hybrid (both), questions or expanded. Default: the technique's own, or dense.
        knob: Such as max_passages=10. Repeatable.
    """

    embedder: Name = "embedded"
    engine: Engine | None = None
    knob: Annotated[
        tuple[str, ...], Parameter(metavar="NAME=VALUE", show_default=False), checked("arms:check_knob")
    ] = ()

    @property
    def knobs(self) -> Mapping[str, str]:
        """Values of knobs, as they were written."""
        from querywright.arms import pairs

        return pairs(self.knob, "--knob")

    def engine_of(self, technique: str) -> str:
        """The engine that a technique searches with."""
        from querywright.arms import engine_for

        return engine_for(technique, self.engine) or "dense"


@Parameter(name="*", group="Search")
@dataclass(frozen=True)
class SearchSource:
    """The collection or retriever to search.

    Args:
        collection: The collection to search: its name, or a collection of your Chroma: FOLDER#NAME or
            http://HOST:PORT#NAME. For an artifact: replaces the artifact's collection.
        retriever: MODULE:FUNCTION, which returns the retriever, instead of a collection.
        where: Search only passages with this metadata, such as '{"topic": "heart"}' (Chroma's filters).
    """

    collection: Name | None = None
    retriever: Annotated[str | None, Parameter(metavar="MODULE:FUNCTION")] = None
    where: Annotated[str | None, Parameter(metavar="JSON")] = None

    @property
    def given(self) -> dict[str, Any]:
        """As programs are given it."""
        from querywright.retrieval.callable import named_retriever

        if self.collection is not None and self.retriever is not None:
            raise InputError("--collection and --retriever both name what is searched; give one of them")
        try:
            where = None if self.where is None else json.loads(self.where)
        except ValueError:
            where = self.where
        if not isinstance(where, dict | None):
            raise InputError(f'--where takes a JSON object, such as \'{{"topic": "heart"}}\', but got {self.where!r}')
        found = self.collection if self.retriever is None else named_retriever(self.retriever)
        return {"retriever": found, "where": where}


@dataclass(frozen=True)
class Searching(SearchOptions):
    """What is searched, what with, and the models that a technique asks."""

    searched: SearchSource = SearchSource()
    helpers: Helpers = Helpers()

    def given(self, lm: LMOptions, *, needed: bool = False) -> dict[str, Any]:
        """Return the arguments of arms that use this LM; raise if a search is needed and nothing to search is named."""
        if needed and self.searched.collection is None and self.searched.retriever is None:
            raise InputError("name a collection or a retriever: --collection NAME, or --retriever MODULE:FUNCTION")
        return {**self.searched.given, **self.helpers.given(lm), "embedder": self.embedder, "knobs": self.knobs}


@dataclass(frozen=True)
class ArmOptions(Searching):
    """What all arms share that do not say otherwise.

    Args:
        engine: dense, bm25, hybrid (both), questions or expanded.
        max_passages: Passages shown to the reader at most, in every arm that names no other number.
        metric: Repeatable. Default: accuracy, and metrics of evidence if the questions have labels.
    """

    max_passages: Count = 5
    engine: Engine = "dense"
    reader: Reader = "auto"
    metric: Annotated[Names, checked("metrics.dspy_metrics:metric_named")] = ()


@Parameter(name="*", group="Run")
@dataclass(frozen=True)
class Threads:
    """Work that runs in parallel.

    Args:
        threads: Questions (or passages, or cases) that run at a time, and parallel calls to a remote LM. Default: 4,
            and as many calls as the server of a remote LM takes.
    """

    threads: Count | None = None


@dataclass(frozen=True)
class RunOptions(Threads):
    """How much is done at a time, and what may fail.

    Args:
        max_failures: Share of them that may fail, 0 to 1.
    """

    max_failures: Share = 0.05

    def at(self, workspace: Workspace) -> dict[str, Any]:
        """As evaluations there take it."""
        return {"threads": self.threads or workspace.threads, "max_failures": self.max_failures}


@Parameter(name="*", group="Output")
@dataclass(frozen=True)
class Home:
    """Where the command works.

    Args:
        home: Folder of the workspace. Default: $QUERYWRIGHT_HOME, or .querywright here.
    """

    home: Folder | None = None

    @property
    def folder(self) -> Path:
        """The folder of the workspace."""
        from querywright.home import home

        return home(self.home)

    def embedder(self, name: str) -> Any:
        """Return an embedder that caches its vectors in the workspace."""
        from querywright.models.embedder import resolve_embedder
        from querywright.models.store import open_store

        return resolve_embedder(name, store=open_store(self.folder))


@dataclass(frozen=True)
class Output(Home):
    """Where the command works, and what it prints."""

    as_json: Json = False


@dataclass(frozen=True)
class Results(Output):
    """Where the command works, how much it prints of what it found, and where that is logged."""

    log: Log = None
    verbose: Verbose = False


@Parameter(name="*")
@dataclass(frozen=True)
class Work:
    """The LM, how much is done at a time and what may fail, and where."""

    lm: LMOptions = LMOptions()
    run: RunOptions = RunOptions()
    output: Output = Output()

    def open(self) -> Workspace:
        """Open the workspace with the LM."""
        return self.lm.open(self.output.home, self.run.threads)

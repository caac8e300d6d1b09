"""Options that several commands share: a command takes a group of options as one argument.

The docstring of a group, or of a command, is the help of its options.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

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
    """Return a parameter whose values are checked by ``look`` (MODULE:FUNCTION) before the command runs."""

    def validate(_: Any, value: Any) -> None:
        module, _, function = look.partition(":")
        look_at = getattr(import_module(f"querywright.{module}"), function)
        for one in [value] if isinstance(value, str) else value or ():
            look_at(one)

    return Parameter(validator=validate)


DEFAULTS = Parameter(negative=())
"""Options have no ``--no-`` form."""

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
Slices = Annotated[tuple[str, ...], Parameter(metavar="COLUMN", show_default=False, group="Questions")]
Columns = Annotated[tuple[str, ...], Parameter(metavar="FIELD=COLUMN", show_default=False)]
Json = Annotated[
    bool,
    Parameter(name="--json", show_default=False, group="Output", help="Print only JSON on standard output."),
]
Log = Annotated[
    str | None,
    Parameter(
        name="--log", metavar="mlflow[:URI]", group="Output",
        help="Log parameters, metrics, files, and the report to MLflow, at URI or $MLFLOW_TRACKING_URI.",
    ),
]  # fmt: skip
Arms = Annotated[tuple[str, ...], Parameter(metavar="ARM...", show_default=False), checked("arms:check_arm")]
Technique = Annotated[str, checked("technique_names:check_technique")]
OwnTechnique = Annotated[
    str | None,
    Parameter(
        name="--technique",
        metavar="FILE.py:NAME",
        help="Code of the artifact's technique, if the technique is not built in.",
    ),
]
Engine = Annotated[Name, checked("retrieval.engines:check_engine")]
Reader = Annotated[
    Name, checked("arms:check_reader"),
    Parameter(help="auto, multiple_choice, short_answer, reasoning, grounded, long_answer, or none."),
]  # fmt: skip
Embedder = Annotated[Name, Parameter(help="embedded, or the name or path of a sentence-transformers model.")]
KNOWN_JUDGE = checked("optimize.judge_files:resolve_judge")
JudgeName = Annotated[Name, KNOWN_JUDGE]
Verbose = Annotated[
    bool, Parameter(show_default=False, group="Output", help="Print all columns, and a sentence for each comparison.")
]
Questions = Annotated[
    str,
    Parameter(
        name="--data",
        metavar="QUESTIONS",
        help="A file or folder of labeled questions (also in BEIR, AutoRAG, FlashRAG, or Ragas format), sample, "
        f"sample-hard, hf:NAME (a dataset on the Hugging Face Hub), or one of {names_of('questions')}.",
    ),
]


def make_app(name: str, help: str, **settings: Any) -> App:
    """Return a command with subcommands."""
    return App(
        name=name, help=help, default_parameter=DEFAULTS, help_format="markdown", console=out, error_console=err,
        result_action="return_value", suppress_keyboard_interrupt=False, **settings,
    )  # fmt: skip


def chosen(group: Any) -> dict[str, Any]:
    """Return a group's options that differ from their defaults, keyed by name, without the options in ``_OF_A_RUN``."""
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
    """Return the command line for a command with options from ``chosen``."""
    words = [word for name, value in options.items() for each in (value if isinstance(value, list) else [value])
             for word in (f"--{name.replace('_', '-')}", str(each))]  # fmt: skip
    return shlex.join(["querywright", command, *arguments, *words])


_OF_A_RUN = {
    "home", "as_json", "log", "verbose", "threads", "max_failures", "max_calls", "timeout", "max_unreadable",
    "api_base", "api_key_env", "writer_api_base", "writer_api_key_env", "judge_api_base",
    "judge_api_key_env",
}  # fmt: skip
"""Options that do not change a run's results, and options that may contain a password, such as addresses."""


@Parameter(name="*", group="LM")
@dataclass(frozen=True)
class LMOptions:
    """The LM.

    Args:
        lm: embedded, gguf:PATH, recording:FILE, or a DSPy model string (openai/...). Default: embedded, or the
            artifact's LM.
        api_base: URL of an OpenAI-compatible server.
        api_key_env: Environment variable that contains the API key.
        max_calls: Stop after N LM calls.
        timeout: Timeout for one attempt to call a remote LM, in seconds; up to a week. Default: 60.
        max_unreadable: Share of the LM's answers that may be unreadable (impossible to parse) before the command stops,
            at least 0 and less than 1. Default: 0.3.
        max_tokens: Maximum number of tokens in a remote LM's answer, including thinking. Default: 1000, or 16000 for
            OpenAI's reasoning models.
        structured: Send a remote LM a JSON schema: on, off, or auto (if the LM's server supports one).
    """

    lm: Name | None = None
    api_base: Url | None = None
    api_key_env: Name | None = None
    max_calls: Count | None = None
    timeout: Annotated[float | None, Parameter(metavar="SECONDS")] = None
    max_unreadable: Annotated[float | None, Parameter(metavar="SHARE")] = None
    max_tokens: Count | None = None
    structured: Literal["on", "off", "auto"] = "auto"

    @property
    def limits(self) -> Limits:
        """The limits for calls to this LM and to every other LM in the command."""
        from querywright.models.circuit_breaker import Limits

        given = {"timeout": self.timeout, "max_unreadable": self.max_unreadable, "max_tokens": self.max_tokens}
        return Limits.where(**given, structured=self.structured)

    @property
    def given(self) -> dict[str, Any]:
        """The arguments for ``Workspace.open``."""
        return {
            "lm": self.lm or "embedded", "api_base": self.api_base, "api_key": api_key(self.api_key_env),
            "max_calls": self.max_calls, "limits": self.limits,
        }  # fmt: skip

    def open(
        self, home: Path | None, threads: int | None = None, *, keeps: bool = True, asks: bool = True
    ) -> Workspace:
        """Open the workspace with this LM. If ``keeps`` is true, the workspace must be writable.

        If the LM is not called, it does not need an API key.
        """
        given = {**self.given, "limits": replace(self.limits, at_once=threads)}
        return Workspace.open(home, **given, keeps=keeps, asks=asks)

    def beside(self, workspace: Workspace) -> Any:
        """Return this LM as an additional LM in a workspace, with the same call limit."""
        return workspace.another_lm(self.lm or "embedded", api_base=self.api_base, api_key=api_key(self.api_key_env))

    def for_artifact(self, artifact: Path | ArtifactManifest, home: Path | None) -> Any:
        """Return the LM for an artifact; None (the artifact's own LM) if no option names a different one.

        If the options set only a URL, an API key, or a limit, they apply to the artifact's LM.
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
    """The writer LM.

    Args:
        writer_lm: The LM that techniques call before the reader: any LM, or the folder of a trained rewriter.
            Default: --lm, or the artifact's LM.
        writer_api_base: URL of the writer's server.
        writer_api_key_env: Environment variable that contains the writer's API key.
    """

    writer_lm: Name | None = None
    writer_api_base: Url | None = None
    writer_api_key_env: Name | None = None

    def beside(self, lm: LMOptions) -> Any:
        """Return the ``writer_lm=`` argument: a name, or an LM with its URL or API key and the limits from ``lm``."""
        from querywright.models.lm import resolve_lm, with_key

        if not (self.writer_api_base or self.writer_api_key_env):
            return self.writer_lm
        if self.writer_lm is None:
            raise InputError("--writer-api-base and --writer-api-key-env require a writer LM; add --writer-lm")
        key = api_key(self.writer_api_key_env)
        return with_key(resolve_lm(self.writer_lm, api_base=self.writer_api_base, api_key=key, limits=lm.limits))


@Parameter(name="*", group="Judge")
@dataclass(frozen=True)
class JudgeLM:
    """The LM that judges.

    Args:
        judge_lm: The LM that judges. Default: --lm, with its URL and API key.
        judge_api_base: URL of the judge's server.
        judge_api_key_env: Environment variable that contains the judge's API key.
    """

    judge_lm: Name | None = None
    judge_api_base: Url | None = None
    judge_api_key_env: Name | None = None

    def beside(self, lm: LMOptions) -> LMOptions | None:
        """Return the options for the judges' LM; None if judges use the same LM as everything else."""
        elsewhere = bool(self.judge_api_base or self.judge_api_key_env)
        if self.judge_lm is None and elsewhere:
            raise InputError("--judge-api-base and --judge-api-key-env require a judge LM; add --judge-lm")
        if not elsewhere and self.judge_lm in (None, lm.lm or "embedded"):
            return None
        return LMOptions(self.judge_lm, self.judge_api_base, self.judge_api_key_env)

    def open(self, workspace: Workspace, lm: LMOptions) -> Any:
        """Return the judges' LM, which may be the workspace's LM; None if no option names one."""
        other = self.beside(lm)
        if other is None:
            return None if self.judge_lm is None else workspace.lm
        return other.beside(workspace)


@dataclass(frozen=True)
class Judges(JudgeLM):
    """Judges and their LM.

    Args:
        judge_lm: The LM for the judge. If you pass this option without --judge, the usefulness judge is added. Default
            LM of a judge: --lm, with its URL and API key.
        judge: A judge (querywright judge list), or the path of a saved judge. Repeatable.
    """

    judge: Annotated[Names, KNOWN_JUDGE] = ()


@dataclass(frozen=True)
class Judging(Judges):
    """Judges, their LM, and the guidelines for answers.

    Args:
        guidelines: File with the points to look for in answers, for --judge coverage.
    """

    guidelines: File | None = None


@Parameter(name="*", group="Data")
@dataclass(frozen=True)
class RowOptions:
    """How to read a file, folder, or dataset.

    Args:
        column: Read a field from a column with a different name, such as text=contents. Repeatable.
        limit: Read only the first N rows.
        split: Split of a dataset or folder.
    """

    column: Columns = ()
    limit: Count | None = None
    split: Name | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The arguments for ``read_questions`` and ``read_passages``."""
        from querywright.arms import pairs

        return {"columns": pairs(self.column, "--column"), "limit": self.limit, "split": self.split}


@dataclass(frozen=True, kw_only=True)
class DataOptions(RowOptions):
    """The questions, and how to read them.

    Args:
        labels: Passage labels: a file written by judge label and corrected by people.
    """

    source: Questions
    labels: File | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The arguments for ``read_questions``."""
        return {**super().given, "labels": self.labels}

    def questions(self, *, multiple_choice: bool | str = False) -> list[Question]:
        """Read the questions. With ``multiple_choice``, each one must have options; a string gives the reason."""
        from querywright.data import read_questions

        return read_questions(self.source, **self.given, multiple_choice=multiple_choice)


@Parameter(name="*", group="Search")
@dataclass(frozen=True)
class Helpers:
    """Other models for a technique.

    Args:
        reranker: Name or path of a cross-encoder, for techniques that rerank.
    """

    reranker: Name | None = None
    writer: WriterLM = WriterLM()

    def given(self, lm: LMOptions) -> dict[str, Any]:
        """Return the arguments for a program that uses this LM."""
        return {"reranker": self.reranker, "writer_lm": self.writer.beside(lm)}


@Parameter(name="*", group="Search")
@dataclass(frozen=True)
class SearchOptions:
    """The embedder, the engine, and the knobs for a technique.

    Args:
        embedder: embedded, or the name or path of a sentence-transformers model; add prompts as
            NAME?query=...&document=...
        engine: dense, bm25, hybrid (dense and bm25), questions (a question index), or expanded (bm25 over passages with
            their generated questions). Default: the technique's own engine, or dense.
        knob: A knob and its value, such as max_passages=10. Repeatable.
    """

    embedder: Name = "embedded"
    engine: Engine | None = None
    knob: Annotated[
        tuple[str, ...], Parameter(metavar="NAME=VALUE", show_default=False), checked("arms:check_knob")
    ] = ()

    @property
    def knobs(self) -> Mapping[str, str]:
        """The knob values, as strings."""
        from querywright.arms import pairs

        return pairs(self.knob, "--knob")

    def engine_of(self, technique: str) -> str:
        """Return the engine for a technique."""
        from querywright.arms import engine_for

        return engine_for(technique, self.engine) or "dense"


@Parameter(name="*", group="Search")
@dataclass(frozen=True)
class SearchSource:
    """The collection or retriever to search.

    Args:
        collection: The collection to search: its name, or a collection in Chroma (FOLDER#NAME or
            http://HOST:PORT#NAME). For an artifact, it replaces the artifact's collection.
        retriever: A function that returns a retriever to use instead of a collection, as MODULE:FUNCTION.
        where: Search only passages with this metadata, such as '{"topic": "heart"}' (Chroma's filters).
    """

    collection: Name | None = None
    retriever: Annotated[str | None, Parameter(metavar="MODULE:FUNCTION")] = None
    where: Annotated[str | None, Parameter(metavar="JSON")] = None

    @property
    def given(self) -> dict[str, Any]:
        """The retriever and the filter, as arguments for programs."""
        from querywright.retrieval.callable import named_retriever

        if self.collection is not None and self.retriever is not None:
            raise InputError("--collection and --retriever cannot be used together; remove one of them")
        try:
            where = None if self.where is None else json.loads(self.where)
        except ValueError:
            where = self.where
        if not isinstance(where, dict | None):
            raise InputError(f'--where must be a JSON object, such as \'{{"topic": "heart"}}\', but got {self.where!r}')
        found = self.collection if self.retriever is None else named_retriever(self.retriever)
        return {"retriever": found, "where": where}


@dataclass(frozen=True)
class Searching(SearchOptions):
    """The retriever, the engine, the knobs, and the other models for a technique."""

    searched: SearchSource = SearchSource()
    helpers: Helpers = Helpers()

    def given(self, lm: LMOptions, *, needed: bool = False) -> dict[str, Any]:
        """Return the arguments for arms that use this LM.

        If ``needed`` is true, a collection or retriever must be named.
        """
        if needed and self.searched.collection is None and self.searched.retriever is None:
            raise InputError("choose a collection or a retriever: use --collection NAME or --retriever MODULE:FUNCTION")
        return {**self.searched.given, **self.helpers.given(lm), "embedder": self.embedder, "knobs": self.knobs}


@dataclass(frozen=True)
class ArmOptions(Searching):
    """The defaults for all arms.

    Args:
        engine: dense, bm25, hybrid (dense and bm25), questions (a question index), or expanded (bm25 over passages with
            their generated questions).
        max_passages: Maximum number of passages shown to the reader, for arms that do not set max_passages.
        metric: A metric. Repeatable. Default: accuracy, and evidence metrics if the questions have labels.
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
        threads: Number of questions to run in parallel (or of passages or cases, if the command runs those), and
            maximum number of parallel calls to a remote LM. Default: 4, and as many calls as the server allows.
    """

    threads: Count | None = None


@dataclass(frozen=True)
class RunOptions(Threads):
    """Parallel work, and the limit on failures.

    Args:
        max_failures: Share of questions that may fail, 0 to 1 (or of passages or cases, if the command runs those).
    """

    max_failures: Share = 0.05

    def at(self, workspace: Workspace) -> dict[str, Any]:
        """Return the arguments for an evaluation in this workspace."""
        return {"threads": self.threads or workspace.threads, "max_failures": self.max_failures}


@Parameter(name="*", group="Output")
@dataclass(frozen=True)
class Home:
    """The workspace.

    Args:
        home: Workspace folder. Default: $QUERYWRIGHT_HOME, or .querywright in the current folder.
    """

    home: Folder | None = None

    @property
    def folder(self) -> Path:
        """The workspace folder."""
        from querywright.home import home

        return home(self.home)

    def embedder(self, name: str) -> Any:
        """Return an embedder that caches its vectors in the workspace."""
        from querywright.models.embedder import resolve_embedder
        from querywright.models.store import open_store

        return resolve_embedder(name, store=open_store(self.folder))


@dataclass(frozen=True)
class Output(Home):
    """The workspace, and the output format."""

    as_json: Json = False


@dataclass(frozen=True)
class Results(Output):
    """The workspace, the output's format and length, and the log."""

    log: Log = None
    verbose: Verbose = False


@Parameter(name="*")
@dataclass(frozen=True)
class Work:
    """The LM, parallel work, the limit on failures, and the workspace."""

    lm: LMOptions = LMOptions()
    run: RunOptions = RunOptions()
    output: Output = Output()

    def open(self) -> Workspace:
        """Open the workspace with the LM."""
        return self.lm.open(self.output.home, self.run.threads)

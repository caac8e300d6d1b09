"""The specification of a study, and its YAML file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, Field, model_validator

from querywright.errors import InputError
from querywright.files import write_file
from querywright.models.circuit_breaker import LONGEST, Limits, Structured
from querywright.models.postgres import SCHEMES
from querywright.optimize.search.checks import read_search, shortened
from querywright.optimize.search.spec import Json, SearchSpec, StrictModel, checked, once
from querywright.programs import technique_class
from querywright.retrieval.engines import split_engine


def _public(address: str) -> str:
    """Raise if an address contains a secret, without showing it, because study files are copied and shared."""
    if re.match(r"([^/]*//)?[^/@]*:(?!\d*(/|$))[^@]*@", address):  # the text after the colon is not a port
        what = "a password"
    elif "?" in address:
        what = "parameters after a question mark (they may include an API key)"
    else:
        return address
    raise ValueError(
        f"must not contain {what}; pass the storage with --storage, and name the API key's variable with api_key_env"
    )


def check_storage(storage: str) -> str:
    """Return a storage that is ``journal`` or the address of a PostgreSQL database.

    Raises:
        InputError: The storage is something else; the message shows only the scheme of an address.
    """
    scheme, address, _ = storage.partition("://")
    if storage == "journal" or (address and scheme in SCHEMES):
        return storage
    # Show only a plain word, because anything else may be a mistyped address with a password.
    word = scheme.replace("+", "").isalnum()
    got = f" {scheme}://" if address and word else f" {storage!r}" if storage.isalnum() else ""
    raise InputError(
        f"unsupported storage{got}; use journal (a file in the study's folder) or an address that begins with "
        "postgresql:// (the driver is psycopg)"
    )


class WriterSpec(StrictModel):
    """An LM or the folder of a trained rewriter, which writes for techniques; in a study file, a name is enough."""

    lm: str
    api_base: Annotated[str, AfterValidator(_public)] | None = None
    api_key_env: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, asked: Any) -> Any:
        return {"lm": asked} if isinstance(asked, str) else asked

    @property
    def name(self) -> str:
        """The writer's name: the name of an LM, or the last part of a path."""
        return Path(self.lm).name if self.lm.startswith(("/", ".", "~", "gguf:", "rewriter:")) else self.lm


class StudySpec(SearchSpec):
    """A search, with the names of everything it opens: questions, collection, LMs, and storage.

    Paths are relative to the current directory. A study file never contains an API key.

    Args:
        questions: ``sample``, a file or folder, or ``hf:NAME``.
        collection: The collection, or the location of a Chroma collection (``FOLDER#NAME``). Default: the first of
            ``retrievers``; without them, there is no default.
        where: A metadata filter such as ``{topic: heart}`` (in Chroma's syntax). Default: all passages.
        labels: A file with passage labels, which become evidence. Default: the questions' evidence.
        columns: Names of the questions' columns, if they differ from the defaults.
        limit: Number of questions to read. Default: all.
        split: The split of a public data set. Default: the usual split.
        sizes: Number of questions in train, dev, and test. Default: all, about 30%, 30%, and 40% (``split_questions``).
        reader_check: Number of additional questions, not in ``sizes``, used only for closed book and oracle evidence,
            because checking the reader takes more questions than comparing techniques. Default 0.
        lm: Name of the LM. Default ``embedded``.
        api_base: Address of the LM's server.
        api_key_env: Environment variable with the LM's API key.
        writers: LMs to choose from, which techniques use instead of ``lm``: names, folders of trained rewriters, or
            mappings with ``lm``, ``api_base``, and ``api_key_env``. Default: only ``lm``.
        judges: Judges for the objectives: names, or paths of saved judges. Default: the built-in judges.
        judge_lm: Name of the judges' LM. Default: ``lm``.
        judge_api_base: Address of the judge LM's server.
        judge_api_key_env: Environment variable with the judge LM's API key.
        embedder: Name of the embedder. Default ``embedded``.
        storage: ``journal`` (a file in the study's folder), or the address of a PostgreSQL database, which may be given
            with ``--storage`` instead. Default ``journal``.
        max_unreadable: Share of the LM's answers in a trial that may be unreadable, at least 0 and less than 1. Default
            0.3.
        timeout: Maximum time in seconds for a call to a remote LM to return its full answer. Default 60.
        max_tokens: Maximum number of tokens in a remote LM's answer, including its reasoning. Default 1000, or 16000
            for OpenAI's reasoning models.
        structured: Whether requests to a remote LM contain a JSON schema: ``on``, ``off``, or ``auto`` (if the server
            supports one). Default ``auto``.
    """

    questions: str
    collection: str
    where: dict[str, Json] | None = None
    labels: str | None = None
    columns: dict[str, str] = Field(default_factory=dict)
    limit: int | None = Field(default=None, ge=1)
    split: str | None = None
    sizes: Annotated[tuple[int, int, int], Field(strict=False)] | None = None
    reader_check: int = Field(default=0, ge=0)
    lm: str = "embedded"
    api_base: Annotated[str, AfterValidator(_public)] | None = None
    api_key_env: str | None = None
    writers: Annotated[list[WriterSpec], AfterValidator(once)] = Field(default_factory=list)
    judges: Annotated[list[str], AfterValidator(once)] = Field(default_factory=list)
    judge_lm: str | None = None
    judge_api_base: Annotated[str, AfterValidator(_public)] | None = None
    judge_api_key_env: str | None = None
    embedder: str = "embedded"
    storage: Annotated[str, AfterValidator(_public), checked(check_storage)] = "journal"
    max_unreadable: float | None = Field(default=None, ge=0, lt=1)
    timeout: float | None = Field(default=None, gt=0, le=LONGEST)
    max_tokens: int | None = Field(default=None, ge=1)
    structured: Structured = "auto"

    @model_validator(mode="before")
    @classmethod
    def _first_retriever(cls, asked: Any) -> Any:
        named = asked.get("retrievers")
        first = next(iter(named.values()), None) if isinstance(named, Mapping) else None
        return {"collection": split_engine(first)[0], **asked} if isinstance(first, str) else asked

    @property
    def limits(self) -> Limits:
        """The limits on calls to the LMs."""
        given = {"timeout": self.timeout, "max_unreadable": self.max_unreadable, "max_tokens": self.max_tokens}
        return Limits.where(**given, structured=self.structured, at_once=self.threads)

    @property
    def writer_names(self) -> tuple[str, ...]:
        """The names of the writers."""
        return tuple(one.name for one in self.writers)


_FREE = frozenset(
    {"budget", "threads", "storage", "max_failures", "max_unreadable", "timeout", "api_key_env", "trials"}
)
"""Keys that do not affect a trial's result; ``trials`` is checked separately."""


def read_spec(source: Path | str | Mapping[str, Any], *, stored: bool = False) -> StudySpec:
    """Read and validate a study from its file.

    The file is YAML with plain data. ``yes``, ``no``, ``on``, and ``off`` are strings, as in YAML 1.2. Duplicate keys
    are not allowed.

    Args:
        source: The path of the file, or the same data as a mapping.
        stored: Whether the study was checked before and is only shown, as in ``read_search``. Default False.

    Raises:
        InputError: The file has problems; the message has one line per problem, as in ``read_search``.
    """
    name, data = ("the study", source) if isinstance(source, Mapping) else _loaded(Path(source))
    return read_search(StudySpec, data, name, _of_writers, stored=stored)


def spec_text(spec: StudySpec) -> str:
    """Return a study as YAML for ``read_spec``, with all defaults; equal studies produce the same text."""
    return yaml.safe_dump(spec.to_json(), sort_keys=False, allow_unicode=True, width=100)


def write_spec(spec: StudySpec, path: Path) -> None:
    """Write a study's file atomically."""
    write_file(path, spec_text(spec))


def _of_writers(spec: StudySpec) -> Iterator[str]:
    if spec.writers and not any(technique_class(name).LM_STAGES for name in spec.techniques):
        yield f"writers: none of the techniques ({', '.join(spec.techniques)}) calls an LM; remove the writers"
    names = [one.name for one in spec.writers]
    yield from (f"writers: {one!r} is listed twice; remove one" for one in dict.fromkeys(names) if names.count(one) > 1)


class _Loader(yaml.SafeLoader):
    """Reads YAML 1.2, in which ``off`` is a string and 1e-3 is a number, and rejects duplicate keys."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: dict[Any, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if key.value in seen:
                problem = f"the key {key.value} occurs twice, on lines {seen[key.value]} and {line}; keep one"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen[str(key.value)] = line
        return super().construct_mapping(node, deep=deep)


for _kind, _form, _first in (
    ("null", r"~|null|", "~n"),
    ("bool", r"true|false", "tf"),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    ("float", r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
):
    _starts = [*_first, *([""] if _kind == "null" else [])]
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(f"^(?:{_form})$"), _starts)


def _loaded(path: Path) -> tuple[str, Mapping[str, Any]]:
    """Return a file's name and data."""
    try:
        data = yaml.load(path.read_text("utf-8-sig"), Loader=_Loader)
    except OSError as error:
        raise InputError(f"cannot read {path.name!r}: {error.strerror}; pass the path of a YAML file") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise InputError(f"{path.name}{place}: not valid YAML: {getattr(error, 'problem', None) or error}") from None
    if not isinstance(data, dict):
        raise InputError(f"{path.name} must be a mapping, such as name: my-study, questions: sample, ...")
    return path.name, data


def spec_differences(old: StudySpec, new: StudySpec) -> list[str]:
    """Return why a study cannot be resumed with a different specification.

    The number of trials may increase; the budget, the storage, the number of threads, and the allowed share of failures
    may change.

    Args:
        old: The original study.
        new: The study to resume.

    Returns:
        A line for each difference, such as ``seed changed from 0 to 1``.
    """
    before, after = ({k: v for k, v in one.to_json().items() if k not in _FREE} for one in (old, new))
    changed = [key for key in after if json.dumps(before[key]) != json.dumps(after[key])]  # the order matters too
    told = {key: [shortened(one[key]) for one in (before, after)] for key in changed}
    fewer = (
        [f"trials can only increase, but changed from {old.trials} to {new.trials}"] if new.trials < old.trials else []
    )
    return [
        *(f"{key} changed" if was == now else f"{key} changed from {was} to {now}" for key, (was, now) in told.items()),
        *fewer,
    ]

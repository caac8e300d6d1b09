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
from querywright.models.circuit_breaker import LONGEST, Limits
from querywright.models.postgres import SCHEMES
from querywright.optimize.search.checks import read_search, shortened
from querywright.optimize.search.spec import Json, SearchSpec, StrictModel, checked, once
from querywright.programs import technique_class


def _public(address: str) -> str:
    """Refuse an address with a secret, which is never shown: a study's file is copied, shown and kept."""
    if re.match(r"([^/]*//)?[^/@]*:(?!\d*(/|$))[^@]*@", address):  # what follows the colon is no port
        what = "a password"
    elif "?" in address:
        what = "settings after a question mark, which may be a key"
    else:
        return address
    raise ValueError(f"holds {what}, and no study's file may; give a storage with --storage, a key by api_key_env")


def check_storage(storage: str) -> str:
    """The storage, where it is one of ours and holds no secret: what else an address holds is never shown.

    Raises:
        InputError: It is something else.
    """
    scheme, address, _ = storage.partition("://")
    if storage == "journal" or (address and scheme in SCHEMES):
        return storage
    # Only a plain word is repeated: anything else may be an address, mistyped, with a password.
    word = scheme.replace("+", "").isalnum()
    got = f"begins with {scheme}://" if address and word else f"is {storage!r}" if storage.isalnum() else "is neither"
    raise InputError(
        "must be journal (a file in the study's folder) or an address that begins with postgresql:// (its driver is "
        f"psycopg), but {got}"
    )


class WriterSpec(StrictModel):
    """An LM that writes for techniques, or the folder of a trained rewriter; its name alone says as much."""

    lm: str
    api_base: Annotated[str, AfterValidator(_public)] | None = None
    api_key_env: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, asked: Any) -> Any:
        return {"lm": asked} if isinstance(asked, str) else asked

    @property
    def name(self) -> str:
        """How it is called: a file or folder without the way to it."""
        return Path(self.lm).name if self.lm.startswith(("/", ".", "~", "gguf:", "rewriter:")) else self.lm


class StudySpec(SearchSpec):
    """A search and what it opens: questions, collection and LMs by name, and where its trials are kept.

    Paths are relative to the working directory; no key is ever part of it.

    Args:
        questions: ``sample``, a file or folder, or ``hf:NAME``, as everywhere.
        collection: The collection that is searched, or the place of one of Chroma (``FOLDER#NAME``).
        where: Search passages with this metadata alone, such as ``{topic: heart}`` (Chroma's filters). None: all.
        labels: File of labels of passages, which become evidence. None: the questions' own evidence.
        columns: Other names of columns of the questions.
        limit: Number of questions that are read. None: all.
        split: Which part of a public set. None: its usual one.
        sizes: Questions in train, dev and test. None: 30, 30 and 40 per cent.
        reader_check: Further questions, out of those that ``sizes`` leaves over, which closed book and oracle evidence
            alone meet: whether the reader reads takes more questions to show than whether a technique finds.
        lm: Name of the LM.
        api_base: Address of its server.
        api_key_env: Environment variable that holds its key.
        writers: LMs to choose from, which techniques ask in place of the LM, and readers do not: names, folders of
            trained rewriters, or mappings of ``lm``, ``api_base`` and ``api_key_env``. Default: the LM alone.
        judges: Judges that objectives ask: names, or paths of saved ones. Default those that the objectives name.
        judge_lm: Name of the LM that judges. None: the LM.
        judge_api_base: Address of its server.
        judge_api_key_env: Environment variable that holds its key.
        embedder: Name of the embedder.
        storage: ``journal`` (a file in the study's folder), or a URL of PostgreSQL, which may be left out here and
            given with ``--storage``.
        max_unreadable: Share of the LMs' answers that may be unreadable in a trial, 0 to less than 1. None: 0.3.
        timeout: Seconds of an attempt at a remote LM, to the end of its answer. None: 60.
        max_tokens: Tokens of a remote LM's answer at most, thinking included. None: 1000, or 16000 for OpenAI's
            reasoning models.
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

    @property
    def limits(self) -> Limits:
        """How patient its LMs are asked."""
        given = {"timeout": self.timeout, "max_unreadable": self.max_unreadable, "max_tokens": self.max_tokens}
        return Limits.where(**given, at_once=self.threads)

    @property
    def writer_names(self) -> tuple[str, ...]:
        """The names of the writers."""
        return tuple(one.name for one in self.writers)


_FREE = frozenset(
    {"budget", "threads", "storage", "max_failures", "max_unreadable", "timeout", "api_key_env", "trials"}
)
"""What changes nothing in what a trial finds; trials are looked at by themselves."""


def read_spec(source: Path | str | Mapping[str, Any]) -> StudySpec:
    """A study from its file, checked whole.

    The file is YAML of plain data: texts, numbers, true and false, lists and mappings. ``yes``, ``no``, ``on`` and
    ``off`` are texts, as in YAML 1.2; a key that stands twice is refused.

    Args:
        source: The file's path, or the same as a mapping.

    Raises:
        InputError: With every problem on a line of its own, as ``read_search`` reports them.
    """
    name, data = ("the study", source) if isinstance(source, Mapping) else _loaded(Path(source))
    return read_search(StudySpec, data, name, _of_writers)


def spec_text(spec: StudySpec) -> str:
    """A study as the YAML that ``read_spec`` reads, every default filled in, always the same for the same study."""
    return yaml.safe_dump(spec.to_json(), sort_keys=False, allow_unicode=True, width=100)


def write_spec(spec: StudySpec, path: Path) -> None:
    """Write a study so that the file is the old one or the new one at every moment."""
    write_file(path, spec_text(spec))


def _of_writers(spec: StudySpec) -> Iterator[str]:
    if spec.writers and not any(technique_class(name).LM_STAGES for name in spec.techniques):
        yield f"writers: none of the techniques ({', '.join(spec.techniques)}) asks an LM; leave them out, or add one"
    names = [one.name for one in spec.writers]
    yield from (f"writers: {one!r} is named twice" for one in dict.fromkeys(names) if names.count(one) > 1)


class _Loader(yaml.SafeLoader):
    """The words of YAML 1.2: ``off`` is a text and 1e-3 a number; no key stands twice."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: dict[Any, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if key.value in seen:
                problem = f"{key.value} stands twice, in lines {seen[key.value]} and {line}; keep one"
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
    """The name and the data of a file."""
    try:
        data = yaml.load(path.read_text("utf-8-sig"), Loader=_Loader)
    except OSError as error:
        raise InputError(f"{path.name!r} cannot be read: {error.strerror}; give the path of a YAML file") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise InputError(f"{path.name}{place}: no YAML here: {getattr(error, 'problem', None) or error}") from None
    if not isinstance(data, dict):
        raise InputError(f"{path.name} must be a mapping such as name: my-study, questions: sample, ...")
    return path.name, data


def spec_differences(old: StudySpec, new: StudySpec) -> list[str]:
    """Return why a study cannot be resumed with another specification.

    More trials, another budget, storage, or number of threads, and another share of failures are allowed.

    Args:
        old: The study as it began.
        new: The study as it is to be resumed.

    Returns:
        A line for each difference, such as ``seed: 0 became 1``.
    """
    before, after = ({k: v for k, v in one.to_json().items() if k not in _FREE} for one in (old, new))
    changed = [key for key in after if json.dumps(before[key]) != json.dumps(after[key])]  # the order counts too
    told = {key: [shortened(one[key]) for one in (before, after)] for key in changed}
    fewer = [f"trials: {old.trials} became {new.trials}; they can only grow"] if new.trials < old.trials else []
    return [
        *(f"{key} changed" if was == now else f"{key}: {was} became {now}" for key, (was, now) in told.items()),
        *fewer,
    ]

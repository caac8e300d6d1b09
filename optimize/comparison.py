"""Arms side by side on the same questions, kept question by question, so that a run that ended goes on."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import dspy

from querywright import __version__
from querywright.data.splits import data_hash
from querywright.data.types import Question
from querywright.errors import InputError
from querywright.metrics.dspy_metrics import Metric
from querywright.models.lm import engine_of
from querywright.optimize.evaluate import DEFAULT_METRICS, Evaluation, Progress, Row, evaluate
from querywright.optimize.program_state import state_of
from querywright.optimize.results import Comparison
from querywright.optimize.significance import against
from querywright.programs.rag import RAG

JOURNAL = "journal.jsonl"
FORMAT = 2
"""Version of a row; rows of another are not read."""
_BEGINS = b'{"key": "'


@dataclass(frozen=True, slots=True)
class Compared:
    """What a comparison found.

    Args:
        arms: Results of every arm, on the same questions.
        baseline: Name of the arm that the others are held against.
        comparisons: Every other arm against the baseline, metric by metric.
        references: Results of programs that are no rivals, such as closed book.
    """

    arms: tuple[Evaluation, ...]
    baseline: str
    comparisons: tuple[Comparison, ...]
    references: tuple[Evaluation, ...] = ()

    def arm(self, name: str) -> Evaluation:
        """The arm of that name."""
        return next(one for one in self.arms if one.name == name)

    def reference(self, name: str) -> Evaluation | None:
        """The reference of that name, where there is one."""
        return next((one for one in self.references if one.name == name), None)

    def to_json(self) -> dict[str, Any]:
        """Summaries and comparisons as a JSON object."""
        return {
            "baseline": self.baseline,
            "arms": [one.to_json() for one in self.arms],
            "references": [one.to_json() for one in self.references],
            "comparisons": [one.to_json() for one in self.comparisons],
        }


def compare(
    arms: Mapping[str, RAG],
    questions: Sequence[Question],
    *,
    lm: dspy.LM,
    folder: Path,
    baseline: str,
    references: Mapping[str, RAG] | None = None,
    metrics: Mapping[str, Metric] = DEFAULT_METRICS,
    scoring: str = "",
    threads: int = 4,
    max_failures: float = 0.05,
    progress: Progress | None = None,
) -> Compared:
    """Evaluate every arm on the same questions, each held against the baseline.

    A row is written to the folder's journal as soon as it is there, so a run that was ended, whichever way, goes on
    where it stopped; an arm or a question more costs no more than itself. A row counts for the same program, question,
    LM and metrics only. A failed question is asked again by the next run, and so is every question of an arm whose
    retriever is a callable without a fingerprint of its own: nothing tells its index from another.

    Args:
        arms: Programs by name.
        questions: What is asked, in order.
        lm: An LM made by ``resolve_lm``.
        folder: Holds the journal; made when it is missing. One process at a time.
        baseline: One of the arms.
        references: Programs that are evaluated but held against nothing, by names of their own. Default none.
        metrics: DSPy metrics by name. Default accuracy and decision_useful.
        scoring: Names what the metrics rest on besides their names, such as a judge and its LM. Default nothing.
        threads: Questions under way at a time, 1 or more. Default 4.
        max_failures: Share of an arm's questions that may fail, 0 to 1. Default 0.05.
        progress: Called after each question.

    Raises:
        InputError: There is no such baseline, another process writes to the folder, or its journal is none.
        OutageError: The LM is out of reach.
        BudgetError: The limit of calls is reached.
        TooManyFailuresError: More questions of an arm failed than allowed.
    """
    if baseline not in arms:
        raise InputError(f"the baseline {baseline!r} is none of the arms {', '.join(arms)}; name one of them")
    references = references or {}
    twice = sorted(set(arms) & set(references))
    if twice:
        raise InputError(f"{twice[0]!r} is an arm and a reference; give it once")
    found = meet(
        {**arms, **references},
        questions,
        lm=lm,
        folder=folder,
        metrics=metrics,
        scoring=scoring,
        threads=threads,
        max_failures=max_failures,
        progress=progress,
    )
    rivals = tuple(found[name] for name in arms)
    return Compared(rivals, baseline, tuple(against(rivals, baseline)), tuple(found[name] for name in references))


def meet(
    programs: Mapping[str, RAG],
    questions: Sequence[Question],
    *,
    lm: dspy.LM,
    folder: Path | None,
    metrics: Mapping[str, Metric] = DEFAULT_METRICS,
    scoring: str = "",
    threads: int = 4,
    max_failures: float = 0.05,
    progress: Progress | None = None,
) -> dict[str, Evaluation]:
    """Evaluate programs on the same questions, each row kept as soon as it is there; see ``compare``.

    Args:
        programs: By name.
        questions: As of ``compare``.
        lm: As of ``compare``.
        folder: Holds the journal; None to keep no row.
        metrics: As of ``compare``.
        scoring: As of ``compare``.
        threads: As of ``compare``.
        max_failures: As of ``compare``.
        progress: As of ``compare``.

    Raises:
        InputError: Another process writes to the folder, or its journal is none.
        OutageError: The LM is out of reach.
        BudgetError: The limit of calls is reached.
        TooManyFailuresError: More questions of a program failed than allowed.
    """
    found: dict[str, Evaluation] = {}
    with contextlib.nullcontext() if folder is None else _open_journal(folder, questions) as journal:
        for name, program in programs.items():
            is_kept = journal is not None and _is_known(program)
            key = _key(program, lm, [scoring, *sorted(metrics)]) if is_kept else None
            found[name] = evaluate(
                program,
                questions,
                lm=lm,
                name=name,
                metrics=metrics,
                threads=threads,
                max_failures=max_failures,
                progress=progress,
                known=None if journal is None or key is None else journal.rows(key),
                keep=None if journal is None or key is None else journal.writer(key),
            )
    return found


class Journal:
    """Rows as they come, a line each; a last line that was torn by a kill is dropped.

    Args:
        file: Open for reading and appending, and locked.
        questions: What every arm is asked.

    Raises:
        InputError: The file is something else.
    """

    def __init__(self, file: IO[bytes], questions: Sequence[Question]) -> None:
        self._file = file
        self._hashes = {question.id: data_hash([question]) for question in questions}
        self._lines: dict[tuple[str, str], dict[str, Any]] = {}
        end = 0
        file.seek(0)
        for number, line in enumerate(file, start=1):
            if not line.startswith(_BEGINS[: len(line)]):
                raise _no_journal(file, number)
            if not line.endswith(b"\n"):
                break
            end += len(line)
            try:
                entry = json.loads(line)
                self._lines[entry["key"], entry["question"]] = entry["row"]
            except (ValueError, TypeError, KeyError) as error:
                raise _no_journal(file, number) from error
        file.truncate(end)

    def rows(self, key: str) -> dict[str, Row]:
        """The rows of an arm, by question id."""
        found: dict[str, Row] = {}
        for id, digest in self._hashes.items():
            data = self._lines.get((key, digest))
            with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):  # no row: it is asked again
                if data is not None:
                    found[id] = Row.from_json(data)
        return found

    def writer(self, key: str) -> Callable[[Row], None]:
        """Writes rows of an arm."""

        def write(row: Row) -> None:
            entry = {"key": key, "question": self._hashes[row.id], "row": row.to_json()}
            self._file.write(json.dumps(entry, ensure_ascii=True).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())

        return write


@contextlib.contextmanager
def _open_journal(folder: Path, questions: Sequence[Question]) -> Iterator[Journal]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / JOURNAL).open("ab+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InputError(
                f"another process writes to {folder.name!r}; wait for it, or give another folder"
            ) from error
        yield Journal(file, questions)


def _no_journal(file: IO[bytes], number: int) -> InputError:
    path = Path(file.name)
    return InputError(
        f"line {number} of {path.name!r} in {path.parent.name!r} is no row of a comparison; give another folder, or "
        "move the file away (answers of an LM are stored elsewhere and are not asked for again)"
    )


def _is_known(program: RAG) -> bool:
    """Whether what is searched can be told from what another program searches."""
    return getattr(program.technique.retriever, "is_known", True)


def _key(program: RAG, lm: dspy.LM, scored: Sequence[str]) -> str:
    """Names all that a row depends on beside its question."""
    technique = program.technique
    parts: dict[str, Any] = {
        "format": FORMAT,
        "version": __version__,
        "program": state_of(program).model_dump(),
        "retriever": None if technique.retriever is None else technique.retriever.fingerprint,
        "technique": getattr(technique, "fingerprint", None),
        "reranker": None if technique.reranker is None else technique.reranker.id,
        **_asked(lm),
        "scored": list(scored),
    }
    if technique.own_lm is not None:
        parts["rewriter"] = _asked(technique.own_lm)
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _asked(lm: dspy.LM) -> dict[str, Any]:
    """An LM and how it is sampled."""
    return {
        "lm": engine_of(lm).identity,
        "sampling": {name: lm.kwargs.get(name) for name in ("temperature", "max_tokens")},
    }

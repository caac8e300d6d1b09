"""Compare programs with a baseline on the same questions, alongside closed book and oracle evidence."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import dspy

from querywright.data.types import PERSON, Passage, Question
from querywright.errors import InputError
from querywright.files import write_file
from querywright.metrics.dspy_metrics import Metric
from querywright.metrics.judge import JudgedMetric
from querywright.optimize.diagnosis import Decisions, Diagnosis, decisions, diagnose
from querywright.optimize.evaluate import (
    DEFAULT_METRICS,
    Evaluation,
    Progress,
    Results,
    Row,
    evaluate_all,
    judged_question,
    standing,
    stands,
)
from querywright.optimize.judging import judge_notes
from querywright.optimize.results import PLAIN, PairedComparison, configuration
from querywright.optimize.significance import against, verdict_sentence
from querywright.optimize.slices import SliceResult, check_known, known_sentence, slice_results
from querywright.programs import RAG, OracleEvidence, technique_class
from querywright.programs.readers import Reader
from querywright.progress import part
from querywright.retrieval.engines import ENGINES, opened

CLOSED_BOOK, ORACLE = "closed book", "oracle evidence"

TRANSCRIBED = 20_000
"""Prompts, which take several kilobytes per call, are kept in memory only if questions times programs is at most this
number."""

SECOND = f"{PLAIN}:query_with_options=true"
"""The second baseline, used if questions have options."""

ROWS, SUMMARY, REPORT = "results.parquet", "comparison.json", "report.html"
"""The files that ``Comparison.save`` writes."""

ANOTHER_FOLDER = "use a different folder with out=..., or delete this folder"

RIGHT = ("accuracy", "exact_match")
"""Metrics that determine which answers are right; the first one that every program has is used."""


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Results):
    """The results of a comparison.

    Args:
        arms: Results of every program (*arm*), on the same questions.
        baseline: Name of the program that the others are compared with.
        comparisons: Every other program compared with the baseline on each metric.
        references: Results of closed book and oracle evidence, which are not compared with the baseline.
        questions: The questions, in the order of the rows. If they have no evidence, the labels that a judge of
            usefulness gave to the passages become their evidence.
        passages: The passages that a program retrieved or that have a label, by id, if the retriever can return
            passages by id.
        diagnosis: Where answers are lost; None if no program reads answers or nothing is labeled.
        decisions: The effect of each program's passages on its answers; empty if ``diagnosis`` is None.
        notes: What readers should know before they trust the numbers, such as unequal budgets or a judge's calibration.
        remarks: Lines to print below a table of the results.
        hints: Warnings about questions, labels, names, and retrievers.
        facts: What was compared and how, by name, for the report.
        source: Name of the question file; empty without a file.
        second: Name of the second baseline, which searches with the question and its options without an LM; empty if
            there is none.
        options: By program name, whether its search uses the options; empty if no question has options.
        slices: Results for each slice, if columns were named.
        programs: By program name, the engine and the knobs that differ from their defaults, such as ``engine dense,
            max_passages=5``.
        settings: The comparison's inputs as plain data: settings, baseline, texts of the programs, and a digest of the
            questions.
    """

    arms: tuple[Evaluation, ...]
    baseline: str
    comparisons: tuple[PairedComparison, ...]
    references: tuple[Evaluation, ...] = ()
    questions: tuple[Question, ...] = ()
    passages: Mapping[str, Passage] = field(default_factory=dict, repr=False)
    diagnosis: Diagnosis | None = None
    decisions: tuple[Decisions, ...] = ()
    notes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
    slices: tuple[SliceResult, ...] = ()
    second: str = ""
    options: Mapping[str, bool] = field(default_factory=dict)
    programs: Mapping[str, str] = field(default_factory=dict, repr=False)
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def asks(self) -> bool:
        """Whether any program calls an LM."""
        return any(one.cost.asked for one in self.arms)

    @property
    def all_notes(self) -> list[str]:
        """Hints, notes, and remarks, without duplicates."""
        return [*dict.fromkeys([*self.hints, *self.notes, *self.remarks])]

    @property
    def below(self) -> list[str]:
        """The lines to print below a table of the results, if the hints were printed before."""
        return [*self.notes, "; ".join(self.remarks)]

    def arm(self, name: str) -> Evaluation:
        """Return the results of a program."""
        return next(one for one in self.arms if one.name == name)

    def reference(self, name: str) -> Evaluation | None:
        """Return the results of a reference; None if there is no such reference."""
        return next((one for one in self.references if one.name == name), None)

    @property
    def verdict(self) -> str:
        """The verdict as text, including gains that are shown only on questions that the LM knows."""
        said = verdict_sentence(self.comparisons, self.programs)
        return "; ".join(filter(None, [said, known_sentence(self.comparisons, self.slices)]))

    @property
    def labelled_by(self) -> str:
        """The judges whose labels the diagnosis and the decisions use; empty if people assigned all labels."""
        names = sorted(
            {name for one in self.questions for names in one.assessors.values() for name in names} - {PERSON}
        )
        return f"labels by judge {', '.join(names)}" if names else ""

    def to_json(self) -> dict[str, Any]:
        """Return everything except the individual questions as a JSON object."""
        return {
            "baseline": self.baseline,
            **({"second_baseline": self.second} if self.second else {}),
            **({"sees_options": dict(self.options)} if self.options else {}),
            "labelled_by": self.labelled_by,
            "arms": [one.to_json() for one in self.arms],
            "references": [one.to_json() for one in self.references],
            "comparisons": [one.to_json() for one in self.comparisons],
            "diagnosis": None if self.diagnosis is None else self.diagnosis.to_json(),
            "decisions": [one.to_json() for one in self.decisions],
            **({"slices": [one.to_json() for one in self.slices]} if self.slices else {}),
            "notes": self.all_notes,
        }

    def save(self, folder: str | Path, *, command: str = "") -> dict[str, str]:
        """Write each question's result, a summary, and the report into a folder; return the files, keyed by name.

        ``compare(..., out=folder)`` adds programs to a saved comparison.

        Args:
            folder: The folder; it is created if it is missing.
            command: The command that reruns the comparison, for the report.
        """
        from querywright.optimize.tables import question_rows, write_table

        folder = Path(folder)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        summary = json.dumps({**self.to_json(), "made": self.settings}, ensure_ascii=False, indent=2, allow_nan=False)
        write_file(folder / SUMMARY, f"{summary}\n")
        write_table(folder / ROWS, question_rows([*self.arms, *self.references], self.questions))
        self.report(folder / REPORT, command=command)
        return {name: str(folder / name) for name in (ROWS, SUMMARY, REPORT)}

    def report(
        self,
        path: str | Path,
        *,
        title: str | None = None,
        facts: Mapping[str, str] | None = None,
        notes: Sequence[str] = (),
        outcome: str = "",
        command: str = "",
        metric: str = "",
    ) -> Path:
        """Write the comparison's report page atomically, and return the file.

        The page contains the prompts and answers of as many LM calls as fit, failed questions first. If the number of
        questions times programs is more than 20,000, the page contains no prompts.

        Args:
            path: The file.
            title: Heading of the page. Default: the question file or the number of programs, and the number of
                questions.
            facts: What was compared and how, by name, in addition to ``self.facts``.
            notes: What to know before trusting a number, in addition to ``self.notes``.
            outcome: The outcome in a sentence.
            command: The command that reruns the comparison.
            metric: The metric on which the page opens. Default: the first metric of the comparison.
        """
        from querywright.optimize.report import comparison_page

        n, heading = len(self.arms[0].rows), f"{self.source}: " if self.source else f"{len(self.arms)} arms on "
        title, notes = title or f"{heading}{n} questions", [*dict.fromkeys([*self.all_notes, *notes])]
        compared: Any = self
        told: Any = {"title": title, "facts": {**self.facts, **(facts or {})}, "outcome": outcome, "command": command}
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, comparison_page(compared, notes=notes, metric=metric, **told))
        return path

    def _told(self) -> tuple[Sequence[Evaluation], Sequence[str], Sequence[Question]]:
        sentences = [*self.all_notes, *filter(None, [self.verdict])]
        return [*self.arms, *self.references], sentences, self.questions


def compare(
    arms: Mapping[str, RAG],
    questions: Sequence[Question],
    *,
    lm: dspy.LM,
    baseline: str | None = None,
    references: bool = True,
    metrics: Mapping[str, Metric] = DEFAULT_METRICS,
    threads: int = 4,
    max_failures: float = 0.05,
    slices: Sequence[str] = (),
    progress: Progress | None = None,
) -> Comparison:
    """Evaluate programs on the same questions and compare each with the baseline.

    The questions of all programs and references share the threads, so that a server stays busy even if there are few
    questions. The results do not depend on the order. Answers are kept only in the LM's cache: an interrupted
    comparison finds them there when you rerun it, and an additional program or question costs only its own calls.

    Args:
        arms: Programs, keyed by name.
        questions: The questions, in order.
        lm: An LM from ``resolve_lm``, with a cache so that nothing is requested twice.
        baseline: Name of the program that the others are compared with. Default ``plain``, or the first program if no
            program has that name.
        references: Whether to evaluate closed book and oracle evidence too if a program searches and reads. The
            diagnosis needs them to determine where answers are lost. Default True.
        metrics: DSPy metrics by name. Default: accuracy and decision_useful.
        threads: Number of questions to run at a time, 1 or more. Default 4.
        max_failures: Share of a program's questions that may fail, 0 to 1. Default 0.05.
        slices: Columns of the questions to show results by; ``options``: whether a question has options; and ``known``:
            whether the reader answers a question correctly without passages, which requires a closed_book program or
            reference. Default none.
        progress: Called after each question with the program and the overall progress of the comparison.

    Raises:
        InputError: There are no programs, the baseline does not exist, or a slice cannot be made.
        OutageError: The LM cannot be reached.
        BudgetError: The call limit is reached.
        TooManyFailuresError: More of a program's questions failed than allowed.
    """
    if not arms:
        raise InputError("there is nothing to compare; pass at least one program")
    baseline = baseline or (PLAIN if PLAIN in arms else next(iter(arms)))
    if baseline not in arms:
        raise InputError(f"the baseline must be one of the programs {', '.join(arms)}, but got {baseline!r}")
    twice = sorted(set(arms) & {CLOSED_BOOK, ORACLE}) if references else []
    if twice:
        raise InputError(f"{twice[0]!r} is the name of both a program and a reference; rename the program")

    asked = questions
    beside = References.of(arms, asked) if references else References()
    own = next((name for name, one in arms.items() if one.technique.NAME == "closed_book" and one.reader), None)
    without_passages = own or next(iter(beside.closed_book.values()), None)
    check_known(slices, [name for name in RIGHT if name in metrics], has_closed_book=without_passages is not None)
    # A passage judge's labels may become evidence, and the oracle then depends on them.
    judging = any(isinstance(one, JudgedMetric) and "passage" in one.judge.needs() for one in metrics.values())
    late = judging and any(one.assessors or not one.evidence for one in asked)
    first = {name: one for name, one in beside.programs.items() if not late or name not in beside.oracle.values()}
    whole = len(asked) * (len(arms) + len(beside.programs))
    given: dict[str, Any] = {"lm": lm, "metrics": metrics, "threads": threads}
    given["max_failures"] = max_failures
    rows: dict[str, list[Row]] = {name: [] for name in arms}
    stands(progress, partial(standing, rows, len(asked), metrics))
    found = evaluate_all(
        {**arms, **first}, asked, **given, progress=part(progress, 0, whole),
        met=lambda name, row: rows[name].append(row) if name in rows else None,
        transcribed=arms if len(asked) * len(arms) <= TRANSCRIBED else (),
    )  # fmt: skip
    rivals = tuple(found[name] for name in arms)
    questions = [
        judged_question(question, [said for row in rows for said in row.judgements])
        for question, *rows in zip(asked, *(one.rows for one in rivals), strict=True)
    ]
    if late and references:
        beside = References.of(arms, questions)
        last = {name: one for name, one in beside.programs.items() if name not in found}
        done = len(asked) * len(found)
        found |= evaluate_all(last, asked, **given, progress=part(progress, done, done + len(asked) * len(last)))
    retrievers = {name: one.technique.retriever for name, one in arms.items() if one.technique.retriever is not None}
    diagnosis, decided = None, tuple[Decisions, ...]()
    labelled = {key for question in questions for key in question.evidence}
    metric = next((name for name in RIGHT if all(name in one.metrics for one in rivals)), None)
    if metric is not None and retrievers and labelled:
        searching = [one for one in rivals if one.name in retrievers]
        closed, oracle = (
            {arm: found[name] for arm, name in names.items()} for names in (beside.closed_book, beside.oracle)
        )
        held = {name: held_by(one, labelled) for name, one in retrievers.items()}
        indexed = {name: labelled if passages is None else set(passages) for name, passages in held.items()}
        diagnosis = diagnose(searching, questions, indexed, metric=metric, closed_book=closed, oracle=oracle)
        decided = decisions(searching, questions, baseline=found[baseline], closed_book=closed, metric=metric)
    right = next((name for name in RIGHT if name in metrics), RIGHT[0])
    closed_rows = None if without_passages is None else found[without_passages]
    sliced = slice_results(rivals, asked, slices, baseline=baseline, closed_book=closed_rows, metric=right)
    shown = {key for one in found.values() for row in one.rows for key in row.passages} | labelled
    options, second = options_used(arms, questions, baseline)
    tests = against(rivals, baseline)
    if second:
        tests += against([one for one in rivals if one.name != baseline], second, prefix=f"against {second}, ")
    return Comparison(
        rivals,
        baseline,
        tuple(tests),
        tuple(found[name] for name in beside.programs),
        tuple(questions),
        {key: one for each in dict.fromkeys(retrievers.values()) for key, one in (held_by(each, shown) or {}).items()},
        diagnosis,
        decided,
        (
            *unequal_budgets(arms), *unequal_inputs(options, baseline, second),
            *unequal_engines(arms, engines_of(arms), baseline), *judge_notes(metrics, lm),
            *getattr(getattr(lm, "engine", None), "notes", ()),
        ),
        second=second,
        options=options,
        slices=sliced,
        programs={
            name: configuration(type(one), opened(one.retriever)["engine"], one.knobs)
            for name, one in ((name, program.technique) for name, program in arms.items())
        },
    )  # fmt: skip


def read_settings(folder: str | Path) -> dict[str, Any]:
    """Return the settings of the comparison in a folder; empty if there is none.

    Raises:
        InputError: The comparison has no settings, or no program can be added to it.
    """
    file = Path(folder) / SUMMARY
    if not file.is_file():
        return {}
    try:
        settings: dict[str, Any] = json.loads(file.read_text("utf-8"))["made"]
        arms = dict(settings["arms"])
    except (ValueError, LookupError, TypeError):
        raise InputError(f"the comparison in {file.parent.name!r} has no valid settings; {ANOTHER_FOLDER}") from None
    in_memory = [name for name, text in arms.items() if text is None]
    if in_memory:
        raise InputError(
            f"no program can be added to the comparison in {file.parent.name!r}, because it contains unsaved in-memory "
            f"programs ({', '.join(in_memory)}); {ANOTHER_FOLDER}"
        )
    return settings


def check_settings(folder: str | Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise if the comparison in a folder has different settings or questions; its programs may differ."""
    other = [name for name in now if before and name != "arms" and before.get(name) != now[name]]
    told = [f"{name} {before.get(name)} instead of {now[name]}" for name in other if name != "questions"]
    if other:
        edited = "on different questions or labels (an edit of a labeled passage also changes its label)"
        how = f"with different settings ({'; '.join(told)})" if told else edited
        raise InputError(f"{Path(folder).name!r} contains a comparison {how}; {ANOTHER_FOLDER}")


def budgets(arms: Mapping[str, RAG]) -> dict[str, int]:
    """Return the maximum number of passages that each program shows, without the programs that show none."""
    return {name: one.technique.max_passages for name, one in arms.items() if one.technique.SEARCHES != "0"}


def unequal_budgets(arms: Mapping[str, RAG]) -> tuple[str, ...]:
    """Return a line with the maximum number of passages that each program shows, if these numbers differ."""
    shown = budgets(arms)
    listed = ", ".join(f"{name} {count}" for name, count in shown.items())
    return (f"UNEQUAL BUDGETS (maximum number of passages): {listed}",) if len(set(shown.values())) > 1 else ()


def unequal_engines(
    arms: Mapping[str, RAG], engines: Mapping[str, str], baseline: str, how: str = "add this arm"
) -> tuple[str, ...]:
    """Return a line with the engines of the baseline and of the programs that search with another engine.

    An engine is left out if plain retrieval with this engine is an arm, because that arm shows the engine's effect. A
    program is left out if its technique requires its engine.

    Args:
        arms: The programs by name.
        engines: The engines or retrievers by program, as the user named them; programs without an engine may be
            missing.
        baseline: The baseline's name.
        how: How to add plain retrieval with the other engine.
    """
    named = (PLAIN, "front, ")  # a saved program's name does not say that it is plain retrieval
    plain = {name for name in engines if arms[name].technique.NAME == PLAIN and name.startswith(named)}
    known = {engines.get(baseline), *(engines[name] for name in plain)}
    other = {name: at for name, at in engines.items() if at not in known and arms[name].technique.ENGINE is None}
    if not other or baseline not in engines:
        return ()
    told = {baseline: engines[baseline], **other}
    listed = ", ".join(name if f"@{at}" in name else f"{name} {at}" for name, at in told.items())
    first = next(iter(other.values()))
    what, remedy = "retriever", f"plain on {first}"
    if {*told.values()} <= {*ENGINES}:
        what, remedy = "engine", f"plain@{first} ({how.format(first)})"
    return (f"UNEQUAL {what.upper()}S: {listed}; a gain may come from the {what}; compare with {remedy}",)


def engines_of(arms: Mapping[str, RAG]) -> dict[str, str]:
    """Return the engine of each program that searches with a known engine, by name."""
    found = {name: opened(one.technique.retriever)["engine"] for name, one in arms.items()}
    return {name: engine for name, engine in found.items() if engine and arms[name].technique.SEARCHES != "0"}


def options_used(arms: Mapping[str, RAG], questions: Sequence[Question], baseline: str) -> tuple[dict[str, bool], str]:
    """Return whether each program's search uses the options (empty if no question has any), and the second baseline."""
    if not any(question.options for question in questions):
        return {}, ""
    options = {name: one.technique.uses_options for name, one in arms.items()}
    return options, next((name for name in options if name != baseline and searches_options(arms[name])), "")


def unequal_inputs(
    options: Mapping[str, bool], baseline: str, second: str, remedy: str = f"add the second baseline {SECOND}"
) -> tuple[str, ...]:
    """Return a line that names the arms that use the options and says what to do, if no baseline uses them."""
    using = [name for name, uses in options.items() if uses and name != baseline]
    if not using or second or options[baseline]:
        return ()
    return (f"{', '.join(using)} used the options to search, but the baseline did not; {remedy}",)


def searches_options(program: RAG) -> bool:
    """Return whether a program is the second baseline: plain retrieval with question and options as the query."""
    return program.technique.NAME == PLAIN and bool(program.technique.knobs["query_with_options"])


@dataclass(frozen=True, slots=True)
class References:
    """Closed book and oracle evidence for each reader of the programs.

    Args:
        programs: The reference programs, keyed by name.
        closed_book: By program, the name of the reference or program with the same reader and no passages.
        oracle: By program, the name of the reference with the same reader and the deciding passages.
    """

    programs: Mapping[str, RAG] = field(default_factory=dict)
    closed_book: Mapping[str, str] = field(default_factory=dict)
    oracle: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, arms: Mapping[str, RAG], questions: Sequence[Question]) -> References:
        """Return the references for each reader of the programs that search."""
        searching = {name: one for name, one in arms.items() if one.technique.retriever is not None}
        budget = {"max_passages": max((one.technique.max_passages for one in searching.values()), default=1)}
        programs: dict[str, RAG] = {}
        bare = {_reader(one): name for name, one in arms.items() if one.technique.NAME == "closed_book"}
        perfect: dict[str, str] = {}
        readers = {arm: _reader(one) for arm, one in searching.items() if one.reader is not None}
        for arm, own in readers.items():
            reader, whose = searching[arm].reader, f", reader of {arm}" if bare and own not in bare else ""
            if reader is not None and own not in bare:
                bare[own] = f"{CLOSED_BOOK}{whose}"
                programs[bare[own]] = closed_book(reader)
            if own not in perfect:
                oracle = oracle_evidence(searching[arm].technique.retriever, questions, reader, budget)
                if oracle is not None:  # otherwise a different program's retriever may return the passages
                    perfect[own] = f"{ORACLE}{whose}"
                    programs[perfect[own]] = oracle
        best = {arm: perfect[own] for arm, own in readers.items() if own in perfect}
        return cls(programs, {arm: bare[own] for arm, own in readers.items()}, best)


def closed_book(reader: Reader) -> RAG:
    """Return a program that shows its reader no passages."""
    return RAG(technique_class("closed_book")(), reader)


def oracle_evidence(
    retriever: Any, questions: Sequence[Question], reader: Reader | None, knobs: Mapping[str, Any]
) -> RAG | None:
    """Return a program that shows its reader the deciding passages of labeled questions.

    Return None if there is no reader or no labeled evidence, or if the retriever cannot return passages by id.
    """
    ids = sorted({key for question in questions for key in question.evidence})
    passages = held_by(retriever, ids)
    if reader is None or passages is None or not ids:
        return None
    return RAG(OracleEvidence(passages, questions, **knobs), reader)


def held_by(retriever: Any, ids: Iterable[str]) -> dict[str, Passage] | None:
    """Return the retriever's passages with these ids, keyed by id; None if the retriever cannot look up ids."""
    if not hasattr(retriever, "get"):
        return None
    try:
        return {passage.id: passage for passage in retriever.get([key for key in ids if key in retriever])}
    except (InputError, TypeError):
        return None


def _reader(program: RAG) -> str:
    """Return a string that identifies a program's reader: its name, prompts, and demonstrations."""
    reader = program.reader
    return repr(reader and (reader.NAME, [(name, one.dump_state()) for name, one in reader.named_predictors()]))

"""Is the embedded model a better judge of answerability once it was taught with labelled cases?

Usage: python benchmarks/taught_judge.py DATA [--train 200] [--dev 40] [--test 100] [--epochs 2] [--work F] [--json]

DATA is a folder in the form of SQuAD 2.0: corpus.jsonl (id, title, text) and questions.jsonl (question, passage,
answerable, answers). A LoRA adapter learns the judge's own prompt, with the sentence of the answer as the reason and
``complete``, or ``none``; half of the cases each. It and the model as it comes then judge cases of other articles, half
of them answerable. Printed are kappa and agreement; --json has the table of what was said of which.
With --work the training is kept, and the same command goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from querywright.data.judged import Case, Judged
from querywright.data.types import Passage, Question
from querywright.metrics.judges import AnswerabilityJudge

LONGEST_REASON = 150
NOTHING = "The passage does not say it."
LEARNT_FROM = 0.6
"""Share of the articles whose cases are learnt from; the others are judged."""


def read(data: Path, longest: int) -> list[dict[str, Any]]:
    """The cases, each with its passage, those of longer passages left out.

    Args:
        data: The folder.
        longest: Characters of a passage at most.
    """
    corpus = {row["id"]: row for row in _rows(data / "corpus.jsonl")}
    cases = [row | {"passage": corpus[row["passage"]]} for row in _rows(data / "questions.jsonl")]
    return [case for case in cases if len(case["passage"]["text"]) <= longest]


def _rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


def parts(cases: Sequence[Mapping[str, Any]], train: int, test: int) -> tuple[list[Any], list[Any]]:
    """Cases to learn from and cases to judge, of different articles, half of each answerable.

    Args:
        cases: All of them.
        train: How many are learnt from.
        test: How many are judged.

    Raises:
        SystemExit: There are too few.
    """
    articles = sorted({_article(case) for case in cases}, key=lambda name: _order("article", name))
    place = int(len(articles) * LEARNT_FROM)
    found = []
    for name, names, size in (("train", articles[:place], train), ("test", articles[place:], test)):
        chosen: list[Any] = []
        for answerable in (True, False):
            some = [case for case in cases if _article(case) in set(names) and case["answerable"] is answerable]
            some.sort(key=lambda case: _order(case["question"], case["passage"]["id"]))
            chosen += some[: size // 2]
        if len(chosen) < size - size % 2:
            raise SystemExit(
                f"there are {len(chosen)} {name} cases, and {size} were asked for: take fewer, or --longest"
            )
        found.append(sorted(chosen, key=lambda case: _order("mix", case["question"])))
    return found[0], found[1]


def _article(case: Mapping[str, Any]) -> str:
    return str(case["passage"]["id"]).rsplit("_", 1)[0]


def _order(*of: str) -> str:
    return hashlib.sha256("|".join(of).encode()).hexdigest()


def judged(case: Mapping[str, Any]) -> Judged:
    """The case with its label."""
    passage = case["passage"]
    shown = Passage(id=passage["id"], text=passage["text"], title=passage.get("title", ""))
    question = Question(id=_order(case["question"])[:12], question=case["question"])
    return Judged(Case(question, (shown,)), "complete" if case["answerable"] else "none")


def taught(case: Mapping[str, Any]) -> Any:
    """The judge's prompt, and what it should have said: a pair to learn from."""
    from querywright.optimize.rewriter.episodes import REWRITER_LIMITS, as_written, first_asked, json_text
    from querywright.optimize.rewriter.pairs import Pair

    judge, known = AnswerabilityJudge(), judged(case)
    messages, schema = first_asked(lambda: judge(**judge.shown(known.case)))
    values = {"reason": reason(case), "label": known.label}
    text = json_text(as_written(values, schema, REWRITER_LIMITS))
    return Pair(known.case.question.id, "judge", 0, messages, text, 1.0, "labels", "squad2")


def reason(case: Mapping[str, Any]) -> str:
    """The sentence that holds the answer, or that part of it that does."""
    if not case["answerable"]:
        return NOTHING
    answer = case["answers"][0]
    sentences = re.split(r"(?<=[.!?])\s+", case["passage"]["text"])
    sentence: str = next((one for one in sentences if answer in one), answer)
    if len(sentence) <= LONGEST_REASON:
        return sentence
    start = max(0, min(sentence.find(answer) - 40, len(sentence) - LONGEST_REASON))
    part = sentence[start : start + LONGEST_REASON]
    return part.partition(" ")[2] if start else part


def teach(pairs: Sequence[Any], options: argparse.Namespace, work: Path, say: Any) -> tuple[Path, dict[str, Any]]:
    """The folder of an adapter that learnt from the pairs, and how it went."""
    from querywright.models.hf import load_base
    from querywright.models.rewriters import describe_base, write_rewriter
    from querywright.optimize.rewriter.episodes import REWRITER_LIMITS
    from querywright.optimize.rewriter.policy import HFPolicy
    from querywright.optimize.rewriter.settings import TrainSettings
    from querywright.optimize.rewriter.warmup import warm_up

    policy = HFPolicy(load_base("embedded"), device=options.device)
    learnt, looked_at = pairs[: options.train], pairs[options.train :]
    settings = TrainSettings("judge", epochs=options.epochs, warmup_lr=5e-4)
    done = warm_up(
        policy, learnt, looked_at, work / "work", settings,
        progress=lambda what, step, steps: say(f"{what}: step {step} of {steps}"),
    )  # fmt: skip
    policy.save(work / "weights")
    limits = {"max_chars": REWRITER_LIMITS.max_chars, "max_items": REWRITER_LIMITS.max_items}
    write_rewriter(
        work / "judge", work / "weights", base=describe_base("embedded"), techniques=["judge"], recipe="warm-up",
        created="", card={}, readme="", **limits,
    )  # fmt: skip
    return work / "judge", {"loss before": done.before, "loss by epoch": list(done.losses)}


def measure(options: argparse.Namespace, work: Path, say: Any) -> dict[str, Any]:
    """Both judges held against the labels."""
    from querywright import resolve_lm
    from querywright.optimize.judging import calibrate

    train, test = parts(read(options.data, options.longest), options.train + options.dev, options.test)
    folder, learnt = teach([taught(case) for case in train], options, work, say)
    report: dict[str, Any] = {"learnt from": options.train, "training": learnt}
    for name, model in (("as it comes", "embedded"), ("taught", f"rewriter:{folder}")):
        lm: Any = resolve_lm(model)
        found = calibrate(AnswerabilityJudge(), [judged(case) for case in test], lm=lm, threads=2)
        report[name] = found.to_json()
        say(f"{name}: {found.sentence()}")
        lm.engine.close()
    return report


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("data", type=Path, metavar="DATA", help="the folder of cases")
    made.add_argument("--train", type=int, default=200, help="cases that are learnt from (200)")
    made.add_argument("--dev", type=int, default=40, help="cases that the epoch is chosen by (40)")
    made.add_argument("--test", type=int, default=100, help="cases that are judged (100)")
    made.add_argument("--epochs", type=int, default=2, help="of the training (2)")
    made.add_argument("--longest", type=int, default=520, help="characters of a passage at most (520)")
    made.add_argument("--device", default="auto", help="as torch names it (auto)")
    made.add_argument("--work", type=Path, help="where the training is kept; a temporary folder otherwise")
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure and print."""
    options = parser().parse_args(arguments)
    say = partial(print, file=sys.stderr if options.json else sys.stdout, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        report = measure(options, options.work or Path(folder), say)
    if options.json:
        print(json.dumps(report, indent=2))
    return report


if __name__ == "__main__":
    main()

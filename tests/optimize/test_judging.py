from __future__ import annotations

import json
import random

import dspy
import pytest

from querywright.data.judged import Case, JudgedCase
from querywright.data.types import Passage, Question
from querywright.errors import ArtifactError, DataError
from querywright.files import json_digest
from querywright.metrics.guideline import Guidelines
from querywright.metrics.judges import JUDGES, AnswerabilityJudge, UsefulnessWithoutAnswerJudge
from querywright.optimize.failures import TooManyFailuresError
from querywright.optimize.judge_files import SavedJudge, load_judge, save_judge
from querywright.optimize.judging import AS_IT_IS, calibrate, compile_judge, freeze_guidelines

LABELS = ("NOT_USEFUL", "USEFUL", "ENTAILED")


def cases(n=24, m=6, labels=LABELS, chars=20):
    """Passages whose text says their label to whoever knows the code."""
    random_ = random.Random(0)
    found = []
    for q in range(n):
        for p in range(m):
            label = random_.choice(labels)
            text = f"Code {labels.index(label)} in passage {p}." + "x" * chars
            found.append(
                JudgedCase(Case(Question(f"q{q}", f"What of number {q}?"), (Passage(f"{q}-{p}", text),)), label)
            )
    return found


def code(asked):
    return int(asked.prompt.rpartition("Code ")[2][0])


def perfect(asked):
    return json.dumps({"reason": "So it says.", "label": LABELS[code(asked)]})


def at_random(asked):
    return json.dumps({"reason": "So it says.", "label": random.Random(asked.prompt).choice(LABELS)})


def learner(asked):
    """Right once it is shown examples, else at random."""
    return perfect(asked) if asked.prompt.count("Code ") > 1 else at_random(asked)


@pytest.fixture
def lm_that(make_engine, make_lm):
    return lambda write, **options: make_lm(make_engine(write=write), **options)


@pytest.fixture
def judge():
    return UsefulnessWithoutAnswerJudge()


def test_a_perfect_judge_has_kappa_one_and_stored_answers_are_used_again(judge, lm_that, store):
    seen, (lm, again) = [], (lm_that(perfect, store=store) for _ in range(2))
    found = calibrate(judge, cases(), lm=lm, threads=3, progress=lambda *at: seen.append(at))
    assert (found.n, found.questions, found.unreadable, found.failed) == (144, 24, 0, 0)
    assert found.figures["kappa"].value == found.figures["agreement"].value == 1
    assert (found.judge, found.lm, found.prompt) == (judge.NAME, "scripted/model", judge.digest())
    assert (len(seen), seen[-1]) == (144, (judge.NAME, 144, 144))
    assert calibrate(judge, cases(), lm=again) == found
    assert again.engine.inner.asked == []


def test_failures_are_counted_and_stop_the_run_when_they_are_many(judge, make_engine, make_lm):
    def failing(when):
        def before(n, asked):
            if when(n):
                raise dspy.LMError("down")

        return make_lm(make_engine(before=before, write=perfect), outage_after=10_000)

    found = calibrate(judge, cases(), lm=failing(lambda n: n == 3), threads=1)
    assert (found.n, found.unreadable, found.failed) == (143, 0, 1)
    with pytest.raises(TooManyFailuresError, match=r"of 144 judgments failed in 'usefulness_without_answer'"):
        calibrate(judge, cases(), lm=failing(lambda n: True), threads=1)


def test_demonstrations_that_help_are_chosen_and_their_worth_is_shown_on_the_other_half(judge, lm_that):
    judged = cases(24, 6)
    lm = lm_that(learner)
    made = compile_judge(judge, judged, lm=lm, threads=4)
    assert made.chosen != AS_IT_IS
    assert next(iter(made.dev)) == AS_IT_IS
    assert set(made.dev) == {AS_IT_IS, *(f"{k} demonstrations ({n})" for n, k in enumerate((3, 3, 6, 6), 1))}
    assert abs(made.before.figures["kappa"].value) < 0.2
    assert made.after.figures["kappa"].value == 1
    gain = made.differences["kappa"]
    assert gain.value == pytest.approx(1 - made.before.figures["kappa"].value)
    assert 0.7 < gain.low < gain.high
    assert made.before.data == made.after.data
    assert made.before.prompt == judge.digest() != made.after.prompt == made.judge.digest()
    assert judge.label.demos == []

    shown = [demo.label for demo in made.judge.label.demos]
    assert sorted(shown) == sorted(LABELS * (len(shown) // 3))
    # No question gave a demonstration and was judged in the last word as well.
    asked = {entry.number for entry in lm.engine.inner.asked if entry.prompt.count("Code ") > 1}
    taught = {demo.question for demo in made.judge.label.demos}
    assert not taught & {f"What of number {n}?" for n in asked}
    assert 10 <= made.after.questions <= 30  # about half


def test_demonstrations_that_do_not_help_are_left_out(judge, lm_that):
    made = compile_judge(judge, cases(24, 6), lm=lm_that(perfect))
    assert made.chosen == AS_IT_IS
    assert made.judge is judge
    assert made.before == made.after
    assert (made.differences["kappa"].value, made.differences["kappa"].low) == (0, 0)


def test_an_arm_that_reads_fewer_cases_is_out(judge, lm_that):
    def picky(asked):
        shown = asked.prompt.count("Code ")
        if shown > 1 and code(asked) != 2:
            return "no JSON at all"  # what it does read, it reads rightly
        return perfect(asked) if shown > 1 else at_random(asked)

    made = compile_judge(judge, cases(24, 6), lm=lm_that(picky))
    assert made.chosen == AS_IT_IS
    assert sum(kappa != kappa for kappa in made.dev.values()) == 4


@pytest.mark.parametrize(
    ("judged", "match"),
    [
        (cases(2), "different --seed"),
        (cases(40, labels=("USEFUL",)), "have only: USEFUL"),
        (cases(40, chars=1100), "at most 1000 characters"),
    ],
)
def test_too_little_to_learn_from(judge, judged, match, lm_that):
    lm = lm_that(perfect)
    with pytest.raises(DataError, match=match):
        compile_judge(judge, judged, lm=lm)
    assert lm.engine.inner.asked == []


@pytest.mark.parametrize(("name", "place"), [*((name, "folder") for name in JUDGES), ("usefulness", "file.json")])
def test_a_judge_from_disk_is_the_same(name, place, tmp_path):
    judge = JUDGES[name]()
    parts = {part: ["a", "b"] if part == "options" else f"some {part} ä" for part in judge.inputs()}
    judge.label.demos = [dspy.Example(**parts, label=next(iter(judge.SCALE)), augmented=True)]
    judge.label.signature = judge.label.signature.with_instructions("Judge well.")
    file = save_judge(tmp_path / place, judge, None)
    assert file == (tmp_path / "folder" / "judge.json" if place == "folder" else tmp_path / place)
    for path in (file, tmp_path / place):
        saved = load_judge(path)
        assert type(saved.judge) is type(judge)
        assert saved.judge.digest() == judge.digest()
        assert saved.judge.label.signature.instructions == "Judge well."
    assert saved.standing("m", "e") == f"judge {name} (m): not calibrated against people"


def test_a_calibration_travels_and_holds_for_its_lm_and_prompt_only(judge, lm_that, tmp_path):
    found = calibrate(judge, cases(), lm=lm_that(perfect))
    saved = load_judge(save_judge(tmp_path / "j", judge, found))
    assert saved.calibration == found
    assert saved.standing("scripted/model", found.engine) == found.sentence()
    other = "not calibrated against people (the calibration used the LM scripted/model)"
    assert other in saved.standing("other", found.engine)
    assert "(the calibration used a different server or version of scripted/model" in saved.standing(
        "scripted/model", "elsewhere"
    )
    tuned = judge.deepcopy()
    tuned.label.signature = tuned.label.signature.with_instructions("Other.")
    assert "(the calibration used a different prompt)" in SavedJudge(tuned, found).standing(
        "scripted/model", found.engine
    )


def test_nothing_secret_is_saved(judge, lm_that, tmp_path):
    judge.label.lm = dspy.LM("openai/x", api_key="sk-secret-123456789", api_base="http://secret.example")
    judge.label.config = {"api_key": "sk-secret-123456789"}
    text = save_judge(tmp_path / "j", judge, calibrate(UsefulnessWithoutAnswerJudge(), cases(3), lm=lm_that(perfect)))
    assert "secret" not in text.read_text()


def resave(file, change):
    """Changes what is in a saved judge, its checksum too unless that is what changes."""
    data = json.loads(file.read_text()) | change
    content = {name: value for name, value in data.items() if name != "sha256"}
    file.write_text(json.dumps({**content, "sha256": change.get("sha256", json_digest(content))}))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"judge": "nobody"}, "unknown judge 'nobody'; available: usefulness"),
        ({"format": 9}, "field format"),
        ({"predictors": {}}, r"has the predictors \['label'\], but the file has \[\]"),
        ({"api_key": "x"}, "field api_key"),
        ({"calibration": {"n": 3}}, "rerun the calibration"),
        ({"sha256": "0"}, "was changed after it was written"),
    ],
)
def test_a_judge_of_another_form_or_that_was_edited_is_refused(change, match, tmp_path):
    file = save_judge(tmp_path / "j", AnswerabilityJudge(), None)
    resave(file, change)
    with pytest.raises(ArtifactError, match=match):
        load_judge(tmp_path / "j")


def test_a_judge_that_is_not_there_or_cut_off(tmp_path):
    with pytest.raises(ArtifactError, match="there is no judge at"):
        load_judge(tmp_path / "none")
    file = save_judge(tmp_path / "j", AnswerabilityJudge(), None)
    file.write_text(file.read_text()[:-30])
    with pytest.raises(ArtifactError, match=r"judge\.json: not valid JSON"):
        load_judge(file)


def test_guidelines_are_written_once(lm_that):
    def write(asked):
        number = asked.number
        if "golden_answer" in asked.properties:
            return "nothing" if number == 2 else json.dumps({"golden_answer": f"It is {number} of {number}."})
        return json.dumps({"key_points": [f"It is {number}."]})

    questions = [(Question(f"q{n}", f"What of number {n}?"), [Passage("p", f"Text of {n}.")]) for n in range(4)]
    lm = lm_that(write)
    first = freeze_guidelines(Guidelines(), questions[:3], lm=lm)
    assert {key: one.points for key, one in first.items()} == {"q0": ("It is 0.",), "q1": ("It is 1.",)}
    assert first["q0"].lm == "scripted/model"
    asked = len(lm.engine.inner.asked)
    second = freeze_guidelines(first, questions, lm=lm)
    assert set(second) == {"q0", "q1", "q3"}
    assert all(second[key] == first[key] for key in first)
    assert {one.number for one in lm.engine.inner.asked[asked:]} == {2, 3}

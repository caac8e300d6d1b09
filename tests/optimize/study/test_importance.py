from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from querywright.optimize.study.report import FEWEST, importance

made = runpy.run_path(str(Path(__file__).with_name("made_study.py")))
made_trial, made_spec, made_trials = made["made_trial"], made["made_spec"], made["made_trials"]
(AIM,) = made_spec().aims


def trial(number, technique, value, **params):
    params = {"technique": technique, **{f"{technique}.{name}": one for name, one in params.items()}}
    return made_trial(number, technique, params=params, values={AIM.name: value}, dev=made["NOTHING"])


def test_the_parameter_that_decides_comes_first_and_a_technique_that_wins_before_its_knobs():
    trials = [trial(n, "hyde", (n % 8) / 10, n_documents=n % 8, gate=["off", "score"][n // 8 % 2]) for n in range(32)]
    shares, _ = importance(trials, AIM)
    assert list(shares) == ["hyde.n_documents", "hyde.gate"]
    assert shares["hyde.n_documents"] > 0.8
    assert sum(shares.values()) == pytest.approx(1)
    trials = [trial(n, ["hyde", "multi_query"][n % 2], 0.9 if n % 2 else 0.1, x=n // 2 % 3) for n in range(40)]
    assert next(iter(importance(trials, AIM)[0])) == "technique"


@pytest.mark.parametrize(
    ("trials", "why"),
    [
        ([trial(n, "hyde", n / 10, x=n) for n in range(FEWEST - 1)], "complete trials: 7, and it takes 8"),
        ([trial(n, "hyde", n / 10, x=1) for n in range(FEWEST)], "no parameter has two values"),
        ([trial(n, "hyde", 0.5, x=n) for n in range(FEWEST)], "the best trials cannot be told from the others"),
    ],
)
def test_where_nothing_can_be_said_it_is_said_why(trials, why):
    assert importance(trials, AIM) == ({}, why)

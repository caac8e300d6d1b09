from __future__ import annotations

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from querywright.optimize.domains import domain_of
from querywright.programs.hyperparameters import Knob

KNOBS = [
    Knob("yes", False, "x"),
    Knob("way", "a", "x", choices=("a", "b", "c")),
    Knob("few", 3, "x", low=1, high=7),
    Knob("many", 5, "x", low=1, high=500),
    Knob("from_zero", 0, "x", low=0, high=100),
    Knob("weight", 1.0, "x", low=0.25, high=4),
    Knob("share", 0.3, "x", low=0.1, high=0.9),
    Knob("below", -0.5, "x", low=-1, high=0),
]


@pytest.mark.parametrize("knob", KNOBS, ids=lambda knob: knob.name)
@given(seed=st.integers(0, 10_000))
@settings(max_examples=10, deadline=None)
def test_suggestions_are_allowed_values_and_the_default_is_one_of_them(knob, seed):
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    study.enqueue_trial({knob.name: knob.default})
    first = domain_of(knob).suggest(study.ask(), knob.name)
    assert first == knob.default
    assert type(first) is type(knob.default)
    value = domain_of(knob).suggest(study.ask(), knob.name)
    assert knob.check(value) == value

"""Compiling without labels, against what a judge says: what is found, who is asked what, and who is named."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_arm_that_is_truly_best_is_found_by_a_judge_that_is_right():
    searched = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "judged_search.py"))["searched"]
    found = searched(0, lead=30, dev=60, test=40)
    assert (found["found"], found["once"]) == (found["best"], True), found

"""Queries asked for at once, of which the first few are searched."""

from __future__ import annotations

import json

import pytest

from querywright.programs import TECHNIQUES

KEPT = {"multi_query": "n_queries", "rag_fusion": "n_queries", "rrr": "n_queries", "decomposition": "n_sub_questions"}
"""The knob that says how many are kept, by technique."""
QUESTION = "Which drug is the right one?"


def asked_and_searched(name, retriever, scripted, asking, **knobs):
    """The first prompt, and the queries that were written and searched."""

    def many(asked):
        return json.dumps(
            {
                field: [f"{field} {n} of all" for n in range(9)] if spec.get("type") == "array" else "text"
                for field, spec in asked.properties.items()
            }
        )

    lm = scripted(many)
    with asking(lm):
        out = TECHNIQUES[name](retriever, **knobs)(question=QUESTION)
    return lm.engine.asked[0].text, [query.text for query in out.queries if query.role != "original"]


def test_every_technique_whose_prompt_tells_a_number_has_the_knob():
    assert {name for name, one in TECHNIQUES.items() if "n_written" in {knob.name for knob in one.KNOBS}} == set(KEPT)
    for name in KEPT:
        knob = next(knob for knob in TECHNIQUES[name].KNOBS if knob.name == "n_written")
        assert (knob.default, knob.search) == (0, False)


@pytest.mark.parametrize(("name", "knob"), KEPT.items())
def test_the_prompt_asks_for_all_and_the_first_are_searched(name, knob, retriever, scripted, asking):
    most_asked, most = asked_and_searched(name, retriever, scripted, asking, **{knob: 6})
    for kept in (1, 2, 6):
        prompt, searched = asked_and_searched(name, retriever, scripted, asking, n_written=6, **{knob: kept})
        assert prompt == most_asked
        assert [text.split(" text")[0] for text in searched] == [text.split(" text")[0] for text in most[:kept]]
        assert len(searched) == kept


@pytest.mark.parametrize(("name", "knob"), KEPT.items())
@pytest.mark.parametrize("written", [0, 1, 2, 3])
def test_fewer_than_are_kept_count_as_those(name, knob, written, retriever, scripted, asking):
    usual = asked_and_searched(name, retriever, scripted, asking, **{knob: 3})
    assert asked_and_searched(name, retriever, scripted, asking, n_written=written, **{knob: 3}) == usual

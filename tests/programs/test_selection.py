from __future__ import annotations

import pytest
from dspy.utils.exceptions import ContextWindowExceededError

from querywright.data.types import Passage
from querywright.models.adapter import PromptAdapter
from querywright.programs import TECHNIQUES, RewriteRetrieveSelect

QUESTION, OPTIONS = "Which part wears first?", ["Pads", "Rotor", "Hose"]
PLANNED = {"queries": ["pads", "rotor"], "passage": "Pads wear first."}


def ids(found):
    return [passage.id for passage in found.passages]


def shown(asked):
    return [line for line in asked.text.splitlines() if line.startswith("[")]


def test_passages_stand_in_the_order_in_which_they_were_named(run):
    out, asked = run(RewriteRetrieveSelect, PLANNED, {"chosen": [7, 2, 7, 99]}, question=QUESTION, options=OPTIONS)
    pool = shown(asked[1])
    assert len(pool) == 20
    titles = [pool[place].split(":")[0].split("] ")[1] for place in (6, 1)]
    assert [passage.title for passage in out.passages] == titles
    assert not out.fallbacks


def test_what_is_searched_are_the_queries_and_the_sentence(run, retriever):
    run(RewriteRetrieveSelect, PLANNED, {"chosen": [1]}, question=QUESTION, options=OPTIONS)
    assert retriever.searches == [(("pads", "rotor", "Pads wear first."), 10)]
    retriever.searches.clear()
    run(RewriteRetrieveSelect, PLANNED, {"chosen": [1]}, question=QUESTION, options=OPTIONS, search_passage=False)
    assert retriever.searches == [(("pads", "rotor"), 10)]


def test_no_passage_is_kept_where_none_helps_and_none_asked_of_where_none_was_found(run, nothing):
    out, _ = run(RewriteRetrieveSelect, PLANNED, {"chosen": []}, question=QUESTION, options=OPTIONS)
    assert (out.passages, out.fallbacks) == ([], [])
    out, asked = run(RewriteRetrieveSelect, PLANNED, question=QUESTION, options=OPTIONS, over=nothing)
    assert (out.passages, len(asked)) == ([], 1)


@pytest.mark.parametrize("answer", ["I cannot say.", {"chosen": [0, 21, -3]}])
def test_an_answer_that_names_no_passage_leaves_the_pool_as_it_was_found(run, answer):
    given = {"question": QUESTION, "options": OPTIONS}
    out, _ = run(RewriteRetrieveSelect, PLANNED, answer, max_passages=3, **given)
    bare, _ = run(RewriteRetrieveSelect, PLANNED, max_passages=3, select=False, **given)
    assert ids(out) == ids(bare)
    assert out.fallbacks == ["select_passages"]


def test_smaller_budgets_share_one_answer_and_are_its_prefixes(run):
    found, prompts = [], set()
    for most in (1, 3, 5):
        out, asked = run(
            RewriteRetrieveSelect, PLANNED, {"chosen": [4, 3, 9, 1, 2]},
            question=QUESTION, options=OPTIONS, max_passages=most,
        )  # fmt: skip
        found.append(ids(out))
        prompts.add(asked[1].text)
    assert len(prompts) == 1
    assert found == [found[2][:1], found[2][:3], found[2]]


@pytest.mark.parametrize(("fit", "pools"), [(5, [20, 10, 5]), (1, [20, 10, 5, 2, 0]), (-1, [20, 10, 5, 2, 0])])
def test_a_pool_that_does_not_fit_the_lm_is_halved(run, fit, pools):
    def short(asked):
        if len(shown(asked)) > fit:
            raise ContextWindowExceededError(message="too long")
        return '{"decided_by": "x", "chosen": [1]}'

    out, asked = run(RewriteRetrieveSelect, PLANNED, short, question=QUESTION, options=OPTIONS, max_passages=3)
    assert [len(shown(one)) for one in asked[1:]] == pools  # one alone is shown without a number
    assert (len(out.passages), out.fallbacks) == ((1, []) if fit > 0 else (3, ["select_passages"]))


def test_it_may_name_what_is_needed_first_and_then_choose_a_set(run, retriever):
    given = {"question": QUESTION, "options": OPTIONS, "max_passages": 3}
    out, asked = run(RewriteRetrieveSelect, PLANNED, {"chosen": [7, 2]}, select_by="needs", **given)
    assert list(asked[1].properties) == ["needs", "chosen"]
    assert [passage.title for passage in out.passages] == [
        shown(asked[1])[place].split(":")[0].split("] ")[1] for place in (6, 1)
    ]
    technique = RewriteRetrieveSelect(retriever)
    again = technique.with_knobs(select_by="needs").with_knobs(select_by="decision")
    assert again.select_passages.signature == technique.select_passages.signature


def test_it_reads_the_sentences_of_each_passage_that_match_and_the_reader_gets_the_whole(run, retriever):
    text = (
        "Cars have wheels. The hose is old. The pads of a brake wear first, before the rotor. They are cheap. Buy two."
    )
    retriever.passages = [Passage("long", text, "Brakes"), *(Passage(f"p{n}", f"Wheels {n} turn.") for n in range(5))]
    given = {"question": QUESTION, "options": OPTIONS}
    out, asked = run(
        RewriteRetrieveSelect, PLANNED, {"chosen": [*range(1, 7)]}, select_words=14, max_passages=6, **given
    )
    (line,) = [line for line in shown(asked[1]) if "Brakes" in line]
    assert line.endswith("Brakes: ... The hose is old. The pads of a brake wear first, before the rotor. ...")
    assert text in {passage.text for passage in out.passages}
    _, (_, whole) = run(RewriteRetrieveSelect, PLANNED, {"chosen": [1]}, **given)
    assert any(text in line for line in shown(whole))


def test_passages_with_a_low_fused_score_are_left_out_of_the_pool(run):
    given = {"question": QUESTION, "options": OPTIONS}
    pools = []
    for least in (0.0, 0.5, 1.0):
        _, asked = run(RewriteRetrieveSelect, PLANNED, {"chosen": [1]}, select_least=least, max_passages=2, **given)
        pools.append(shown(asked[1]))
    assert len(pools[0]) == 20 > len(pools[1]) > len(pools[2]) == 2
    assert pools[0][: len(pools[1])] == pools[1]


@pytest.mark.parametrize("name", [name for name, kind in TECHNIQUES.items() if kind.LM_STAGES])
def test_every_technique_that_asks_an_lm_can_select(run, name):
    out, asked = run(TECHNIQUES[name], {"chosen": [2]}, question=QUESTION, options=OPTIONS, select=True)
    assert "decided_by" in asked[-1].properties
    assert shown(asked[-1])[1].startswith(f"[2] {out.passages[0].title}")
    assert len(out.passages) == 1


def test_an_lm_that_fills_in_a_form_names_only_passages_that_there_are(run):
    out, asked = run(
        RewriteRetrieveSelect, PLANNED, {"chosen": [2, 1]},
        question=QUESTION, options=OPTIONS, adapter=PromptAdapter(grammar=True),
    )  # fmt: skip
    form = asked[1].properties["chosen"]
    assert (form["maxItems"], form["items"]["minimum"], form["items"]["maximum"]) == (5, 1, 20)
    assert "minItems" not in form
    assert len(out.passages) == 2


def test_with_a_cross_encoder_the_lm_selects_from_its_order(run):
    class Backwards:
        id = "backwards"

        def score(self, query, passages):
            return list(range(len(passages)))

    out, asked = run(
        lambda *given, **more: TECHNIQUES["rerank"](*given, reranker=Backwards(), **more), {"chosen": [1]},
        question=QUESTION, select=True,
    )  # fmt: skip
    assert len(asked) == 1
    assert shown(asked[0])[0].startswith(f"[1] {out.passages[0].title}")

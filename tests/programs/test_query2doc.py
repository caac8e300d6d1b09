from __future__ import annotations

import pytest

from querywright.programs import Query2Doc

QUESTION = "Who directed the film that was shot in Corfu?"
PASSAGE = "The film For Your Eyes Only was shot in Corfu in 1980. It was directed by John Glen."


@pytest.fixture
def run(retriever, scripted, asking):
    def run(*steps, **knobs):
        lm = scripted(*(steps or ({"passage": PASSAGE},)))
        with asking(lm):
            out = Query2Doc(retriever, **knobs)(question=QUESTION)
        return out, lm.engine.asked

    return run


def test_a_dense_retriever_is_asked_once_for_question_and_passage(run, retriever):
    out, (asked,) = run(max_passages=7)

    assert [(q.text, q.role, q.weight) for q in out.queries] == [(f"{QUESTION}\n{PASSAGE}", "pseudo_document", 1.0)]
    assert retriever.searches == [((f"{QUESTION}\n{PASSAGE}",), 7)]
    assert out.passages == [hit.passage for hit in retriever.search([f"{QUESTION}\n{PASSAGE}"], 7)[0]]
    assert out.fallbacks == []
    assert f"question: {QUESTION}" in asked.text
    assert list(asked.properties) == ["passage"]


@pytest.mark.parametrize(
    ("kind", "repeats", "expected"),
    [("lexical", 0, 5), ("dense", 0, 1), ("hybrid", 0, 1), (None, 0, 1), ("lexical", 1, 1), ("dense", 3, 3)],
)
def test_the_question_is_repeated_as_the_retriever_needs_it(run, retriever, monkeypatch, kind, repeats, expected):
    if kind is None:
        monkeypatch.delattr(type(retriever), "kind")
    else:
        monkeypatch.setattr(retriever, "kind", kind, raising=False)
    out, _ = run(repeats=repeats)

    assert out.queries[0].text == " ".join([QUESTION] * expected) + f"\n{PASSAGE}"


def test_a_passage_of_several_lines_becomes_one(run):
    out, _ = run({"passage": ' "Corfu is\n an  island." '})

    assert out.queries[0].text == f"{QUESTION}\nCorfu is an island."


@pytest.mark.parametrize("answer", ["no JSON at all", '{"passage": ""}', '{"passage": "None."}', '{"passage": null}'])
def test_without_a_passage_the_question_is_the_query(run, retriever, answer):
    out, _ = run(answer, repeats=4)

    assert [(q.text, q.role) for q in out.queries] == [(QUESTION, "original")]
    assert retriever.searches == [((QUESTION,), 5)]
    assert out.fallbacks == ["passage"]

"""The one-shot techniques: what their papers and public codes say, their arithmetic worked out by hand."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace
from types import SimpleNamespace

import dspy
import numpy as np
import pytest
from dspy.clients.cache import Cache

from querywright.data.types import Passage
from querywright.errors import TechniqueError
from querywright.programs import (
    QARAG,
    ContrastiveHypotheses,
    CorpusSteeredExpansion,
    Filter,
    HyDE,
    MultiQuery,
    PlainRetrieval,
    Query2Doc,
    RAGFusion,
    Rerank,
    RewriteRetrieveRead,
    StepBackRetrieval,
    use_writer,
)
from querywright.programs.hyperparameters import Knob
from querywright.retrieval.types import Hit

QUESTION = "How is low sugar treated?"
OPTIONS = ["Aspirin", "Insulin"]
WORDINGS = ["first wording", "second wording", "third wording"]


class Ranked:
    """A retriever with a fixed ranking of passages ``a``, ``b`` ... for each query; others find the question's."""

    fingerprint, kind = "ranked", "dense"

    def __init__(self, question, **rankings):
        self.rankings = {QUESTION: question, **{key.replace("_", " "): value for key, value in rankings.items()}}
        self.searches = []

    def search(self, queries, k):
        self.searches.append((tuple(queries), k))
        found = [self.rankings.get(query, self.rankings[QUESTION])[:k] for query in queries]
        return [
            [Hit(Passage(key, f"Text {key}."), 1 / rank, rank) for rank, key in enumerate(keys, 1)] for keys in found
        ]


@pytest.fixture
def ranked():
    return Ranked("abc", first_wording="bca", second_wording="bd", third_wording="de", step_back="cb")


def ids(out):
    return "".join(passage.id for passage in out.passages)


def queries(out):
    return [(query.role, query.text) for query in out.queries]


def test_plain_searches_the_question_and_its_options_where_asked(run, retriever):
    out, asked = run(PlainRetrieval, question=QUESTION, options=OPTIONS)
    assert (queries(out), asked, retriever.searches) == ([("original", QUESTION)], [], [((QUESTION,), 5)])
    for options, text in ((OPTIONS, f"{QUESTION} Aspirin Insulin"), (None, QUESTION)):
        out, _ = run(PlainRetrieval, question=QUESTION, options=options, query_with_options=True)
        assert queries(out) == [("original", text)]


# Multi-Query, RAG-Fusion and Step-Back.


def test_multi_query_searches_the_question_and_its_paraphrases(run, ranked):
    out, (asked,) = run(MultiQuery, {"queries": WORDINGS}, question=QUESTION, over=ranked)
    assert queries(out) == [("original", QUESTION), *(("paraphrase", text) for text in WORDINGS)]
    assert ids(out) == "abdce"  # first hits a b b d, second hits b c d e, third hits c a: round by round, each once
    assert "3 different wordings" in asked.text
    # As LangChain does it: the paraphrases alone, their lists one after another, each document at its first place.
    bare = {"fusion": "union", "search_question": False}
    out, _ = run(MultiQuery, {"queries": WORDINGS}, question=QUESTION, over=ranked, **bare)
    assert (queries(out), ids(out)) == ([("paraphrase", text) for text in WORDINGS], "bcade")


def test_rag_fusion_adds_reciprocal_ranks(run, ranked):
    """a 1/61 + 1/63, b 1/62 + 1/61 + 1/61, c 1/63 + 1/62, d 1/62 + 1/61, e 1/62: by hand."""
    given = {"question": QUESTION, "over": ranked}
    out, (asked,) = run(RAGFusion, {"queries": WORDINGS}, **given)
    sums = {"a": 1 / 61 + 1 / 63, "b": 1 / 62 + 2 / 61, "c": 1 / 63 + 1 / 62, "d": 1 / 62 + 1 / 61, "e": 1 / 62}
    assert ids(out) == "".join(sorted(sums, key=lambda key: -sums[key])) == "bdace"
    assert [query.role for query in out.queries] == ["original", *["related"] * 3]
    assert "4 short search queries" in asked.text
    # With weight 4 the question's own first, a, has 4/61 + 1/63 against 4/62 + 2/61 of b and 4/63 + 1/62 of c.
    assert ids(run(RAGFusion, {"queries": WORDINGS}, question_weight=4.0, **given)[0])[:3] == "bac"


def test_step_back_gives_each_question_half_of_the_budget(run, ranked):
    """The question's a b, then of c b, which the other found, c alone; what is left over goes back: nothing."""
    written = {"step_back_question": "step back"}
    out, (asked,) = run(StepBackRetrieval, written, question=QUESTION, over=ranked, max_passages=4)
    assert queries(out) == [("original", QUESTION), ("step_back", "step back")]
    assert ids(out) == "abc"
    assert "more general question" in asked.text
    assert ids(run(StepBackRetrieval, written, question=QUESTION, over=ranked, max_passages=2)[0]) == "ac"
    out, _ = run(StepBackRetrieval, {"step_back_question": "None"}, question=QUESTION, over=ranked)
    assert (queries(out), out.fallbacks) == ([("original", QUESTION)], ["step_back"])


# Query2Doc and HyDE.


@pytest.mark.parametrize(
    ("kind", "repeats", "times"),
    [("lexical", 0, 5), ("hybrid", 0, 1), (None, 0, 1), ("dense", 3, 3)],
)
def test_query2doc_repeats_the_question_as_the_retriever_needs_it(run, retriever, monkeypatch, kind, repeats, times):
    if kind is None:
        monkeypatch.delattr(type(retriever), "kind")
    else:
        monkeypatch.setattr(retriever, "kind", kind, raising=False)
    out, _ = run(Query2Doc, {"passage": ' "Corfu is\n an  island." '}, question=QUESTION, repeats=repeats)
    text = " ".join([QUESTION] * times) + "\nCorfu is an island."
    assert (queries(out), retriever.searches) == ([("pseudo_document", text)], [((text,), 5)])


class Plane(Ranked):
    """Three documents in two dimensions, searched by cosine."""

    VECTORS = {QUESTION: (1, 0), "first": (0, 2), "second": (0, 1), "third": (1.2, 1.6)}  # noqa: RUF012
    DOCS = {"e": (1.0, 0.0), "n": (0.0, 1.0), "b": (0.6, 0.8)}  # noqa: RUF012

    def __init__(self):
        self.vectors = []

    def embed(self, texts):
        return [self.VECTORS[text] for text in texts]

    def search(self, queries, k):
        return self.search_vectors(self.embed(queries), k)

    def search_vectors(self, vectors, k):
        self.vectors.extend(np.asarray(vectors).tolist())
        (row,) = np.asarray(vectors, dtype=float)
        cosines = {key: float(row @ np.array(doc)) / np.linalg.norm(row) for key, doc in self.DOCS.items()}
        best = sorted(cosines, key=lambda key: -cosines[key])[:k]
        return [[Hit(Passage(key, key), cosines[key], rank) for rank, key in enumerate(best, 1)]]


def documents(*texts):
    return [{"passage": text} for text in texts]


def test_hyde_searches_the_mean_of_the_documents_and_the_question(run):
    """Of (1, 0), (0, 2) and (0, 1), made of length 1: ((1 + 0 + 0) / 3, (0 + 1 + 1) / 3) = (1/3, 2/3)."""
    plane, two = Plane(), {"question": QUESTION, "n_documents": 2}
    out, asked = run(HyDE, *documents("first", "second"), over=plane, **two)
    assert plane.vectors == [pytest.approx([1 / 3, 2 / 3])]
    assert ids(out) == "bne"  # cosines: between (1/3 * .6 + 2/3 * .8) / (sqrt(5) / 3) = .98, north .89, east .45
    assert [query.role for query in out.queries] == ["original", *["hypothetical_document"] * 2]
    assert sorted(one.sampling for one in asked) == [(0.7, 0), (0.7, 1)]  # a seed each, one prompt
    assert len({one.text for one in asked}) == 1
    out, _ = run(HyDE, *documents("first", "second"), over=(plane := Plane()), search_question=False, **two)
    assert (plane.vectors, ids(out)) == ([pytest.approx([0, 1])], "nbe")


@pytest.mark.parametrize(
    ("weight", "vector", "order"),
    [(0.3, (0.6, 0.5), "ben"), (0.7, (0.6, 0.1), "ebn"), (0, (0.6, 0.8), "bne")],  # north is the rival's direction
)
def test_contrastive_hypotheses_search_the_difference_of_two_vectors(run, weight, vector, order):
    plane = Plane()
    out, (asked,) = run(
        ContrastiveHypotheses, {"likely": "third", "rival": "first"}, over=plane, question=QUESTION,
        options=OPTIONS, rival_weight=weight,
    )  # fmt: skip
    assert plane.vectors == [pytest.approx(vector)]
    assert ids(out) == order
    assert [query.role for query in out.queries] == ["hypothesis", "rival"][: 2 if weight else 1]
    assert "Insulin" in asked.text


def test_contrastive_hypotheses_do_without_what_cannot_be_read(run):
    plane = Plane()
    out, _ = run(ContrastiveHypotheses, {"likely": "third", "rival": " "}, over=plane, question=QUESTION)
    assert (plane.vectors, out.fallbacks) == ([pytest.approx([0.6, 0.8])], ["rival"])
    out, _ = run(ContrastiveHypotheses, {"likely": "", "rival": "first"}, over=Plane(), question=QUESTION)
    assert (queries(out), ids(out), out.fallbacks) == ([("original", QUESTION)], "ebn", ["hypotheses"])


def test_corpus_steered_expansion_reads_new_passages_in_each_round(run):
    one, both = f"{QUESTION}\nfirst wording", f"{QUESTION}\nfirst wording\nsecond wording"
    ranked = Ranked("abcdef", **{one: "bahg", both: "ih"})
    out, asked = run(
        CorpusSteeredExpansion, *({"expansion": text} for text in WORDINGS), over=ranked, question=QUESTION,
        options=OPTIONS, feedback=2, rounds=2, max_passages=3,
    )  # fmt: skip
    assert queries(out) == [("original", QUESTION), ("expansion", one), ("expansion", both)]
    assert ids(out) == "ih"
    read = [[key for key in "abcdefghi" if f"Text {key}." in request.text] for request in asked]
    assert read == [["a", "b"], ["h", "g"][::-1]]
    assert "Insulin" in asked[0].text


def test_corpus_steered_expansion_ends_where_none_can_be_read(run, monkeypatch):
    ranked = Ranked("abc")
    monkeypatch.setattr(ranked, "kind", "lexical")
    out, _ = run(CorpusSteeredExpansion, {"expansion": "first"}, {"expansion": ""}, over=ranked, question=QUESTION,
                 feedback=1, rounds=3)  # fmt: skip
    assert [query.text for query in out.queries] == [QUESTION, " ".join([QUESTION] * 5) + "\nfirst"]
    assert (ids(out), out.fallbacks) == ("abc", ["expansion:2"])


def test_hyde_embeds_its_documents_as_the_passages_are(run):
    class TwoSided(Plane):
        def embed_documents(self, texts):
            return [(0, -1) for _ in texts]

    run(HyDE, *documents("first", "second"), over=(plane := TwoSided()), question=QUESTION, n_documents=2)
    assert plane.vectors == [pytest.approx([1 / 3, -2 / 3])]


def test_hyde_leaves_out_a_document_that_cannot_be_read(run):
    def step(asked):
        return '{"passage": "first"}' if asked.sampling[1] == 1 else "no JSON"

    out, _ = run(HyDE, step, over=(plane := Plane()), question=QUESTION, n_documents=3)
    assert (out.fallbacks, plane.vectors) == (["document:1", "document:3"], [pytest.approx([0.5, 0.5])])
    out, _ = run(HyDE, "no JSON", over=(plane := Plane()), question=QUESTION, n_documents=2, search_question=False)
    assert (queries(out), plane.vectors) == ([("original", QUESTION)], [[1.0, 0.0]])


def test_samples_of_an_lm_without_seeds_are_told_apart_by_their_rollout(scripted, asking, monkeypatch):
    """DSPy's cache would otherwise give the first one for all."""
    monkeypatch.setattr(dspy, "cache", Cache(False, True, "", 0))
    plain = scripted(*documents("first", "second"))
    plain.engine.supported_params = frozenset({"temperature", "max_tokens", "response_format"})
    lm, technique = plain.copy(cache=True), HyDE(Plane(), n_documents=2)
    technique.write_document.lm = lm
    for _ in range(2):
        with asking(scripted("never asked")):
            out = technique(question=QUESTION)
        assert sorted(query.text for query in out.queries[1:]) == ["first", "second"]
    assert [one.sampling for one in lm.engine.asked] == [(0.7, None)] * 2


def test_a_rewriter_decides_about_seeds_before_the_predictors_writer_lm_and_that_before_the_settings(scripted, asking):
    own = scripted(*documents("first"))
    technique = HyDE(Plane(), n_documents=1)
    technique.write_document.lm = own
    with asking(scripted("never asked")):
        technique(question=QUESTION)
    assert [one.sampling for one in own.engine.asked] == [(0.7, 0)]
    own.engine.supported_params = frozenset({"temperature"})
    use_writer(technique, rewriter := scripted(*documents("first")))
    with asking(own):
        technique(question=QUESTION)
    assert ([one.sampling for one in rewriter.engine.asked], len(own.engine.asked)) == ([(0.7, 0)], 1)


def test_hyde_refuses_a_retriever_without_vectors():
    words = SimpleNamespace(fingerprint="words", kind="lexical", search=lambda queries, k: [[] for _ in queries])
    with pytest.raises(TechniqueError, match=r"hyde .* vectors, but got a lexical retriever.*query2doc"):
        HyDE(words)
    words.search_vectors = words.search
    with pytest.raises(TechniqueError, match="but got a lexical retriever"):
        HyDE(words)


# Rewrite-Retrieve-Read.

THOUGHT = "Find who directed each film."
REWRITTEN = ["director of Ed Wood", "director of Big Fish", "Tim Burton born", "Big Fish cast"]


def rewriting(*texts):
    return json.dumps({"thought": THOUGHT, "queries": texts})


def test_rrr_searches_its_queries_and_not_the_question(run, retriever):
    out, (asked,) = run(RewriteRetrieveRead, rewriting(*REWRITTEN), question=QUESTION, options=OPTIONS)
    assert queries(out) == [("rewrite", text) for text in REWRITTEN[:3]]
    assert retriever.searches == [(tuple(REWRITTEN[:3]), 5)]
    assert list(asked.properties) == ["thought", "queries"]  # the thought comes first
    assert "\nWrite at most 3 queries, or none if nothing has to be looked up.\n" in asked.system
    assert "options:\n- Aspirin\n- Insulin" in asked.text


@pytest.mark.parametrize(
    ("written", "searched"),
    [
        (["director of Ed Wood; director of Big Fish"], REWRITTEN[:2]),
        (["1. director of Ed Wood", "2. Director of Ed Wood ", "none", '3. "director of Big Fish"'], REWRITTEN[:2]),
        ([], []),
        (["none; None"], []),
    ],
)
def test_rrr_tells_queries_apart_and_none_means_no_search(run, retriever, written, searched):
    out, asked = run(RewriteRetrieveRead, rewriting(*written), question=QUESTION)
    assert ([text for _, text in queries(out)], out.fallbacks, len(asked)) == (searched, [], 1)
    assert bool(out.passages) == bool(searched) == bool(retriever.searches)


def test_rrr_searches_the_question_where_it_may_not_skip_or_cannot_be_read(run):
    out, (asked,) = run(RewriteRetrieveRead, rewriting("None"), question=QUESTION, may_skip=False)
    assert (queries(out), out.fallbacks) == ([("original", QUESTION)], [])
    assert "\nWrite at most 3 queries.\n" in asked.system
    out, _ = run(RewriteRetrieveRead, "sorry", question=QUESTION)
    assert (queries(out), out.fallbacks) == ([("original", QUESTION)], ["rewrite"])


# The baselines that judge what was found, and QA-RAG.


def grading(grades, answer=None):
    """An LM that grades passages by a table, ``irrelevant`` where it has none, and writes a hypothetical answer."""

    def step(asked):
        if "answer" in asked.properties:
            return json.dumps({"answer": answer})
        (key,) = [key for key in "abcdefghij" if f"Text {key}." in asked.text]
        return json.dumps({"passage_is": grades.get(key, "irrelevant")})

    return step


class FixedReranker:
    """The later in the alphabet, the better; remembers what it was asked and where."""

    id = "fixed"

    def __init__(self):
        self.asked, self.threads = [], []

    def score(self, query, passages):
        self.asked.append((query, "".join(passage.id for passage in passages)))
        self.threads.append(threading.current_thread())
        return [float(ord(passage.id)) for passage in passages]


POOL = Ranked("abcdef")


def test_rerank_sorts_the_pool_by_grade_and_equals_stay_in_their_order(run):
    grades = {"b": "relevant", "d": "related", "f": "related"}
    out, asked = run(Rerank, grading(grades), question=QUESTION, over=(found := Ranked("abcdef")))
    assert (ids(out), queries(out), found.searches) == ("bdfac", [("original", QUESTION)], [((QUESTION,), 20)])
    assert [(step.kind, step.stage) for step in out.steps] == [("search", 1)] + [("lm", 2)] * 6
    shown = sorted(one.text.partition("passage: ")[2].partition("\n")[0] for one in asked)
    assert shown == [f"[1] Text {key}." for key in "abcdef"]
    assert all(f"question: {QUESTION}" in one.text for one in asked)
    out, asked = run(Rerank, grading({"a": "splendid", "b": "irrelevant"}), question=QUESTION, over=POOL)
    assert (ids(out), out.fallbacks, len(asked)) == ("abcde", ["grade"], 7)  # unreadable: asked again, then the middle


def test_a_cross_encoder_takes_the_place_of_the_lm_and_runs_beside_the_event_loop(run):
    reranker = FixedReranker()
    out, asked = run(Rerank, question=QUESTION, over=POOL, reranker=reranker, max_passages=4)
    assert (ids(out), asked, reranker.asked) == ("fedc", [], [(QUESTION, "abcdef")])
    record = out.steps[1]
    assert (record.kind, record.name, record.given) == ("rerank", "passages", {"question": QUESTION})
    assert record.made == {key: float(ord(key)) for key in "abcdef"}

    async def later():
        return await Rerank(POOL, reranker=reranker, max_passages=4).acall(question=QUESTION)

    assert asyncio.run(later()).steps == out.steps
    assert [thread is threading.main_thread() for thread in reranker.threads] == [True, False]
    with pytest.raises(TechniqueError, match="plain does not rerank"):
        PlainRetrieval(POOL, reranker=reranker)
    unnamed = [SimpleNamespace(id=one, score=max) for one in ("/home/me/model", "~/model", "models\\mine", " ", None)]
    for lacking, said in (*((one, "id must be .* not a path") for one in unnamed), (SimpleNamespace(id="x"), "score")):
        with pytest.raises(TechniqueError, match=said):
            Rerank(POOL, reranker=lacking)


def test_knobs_that_cannot_be_what_they_say_are_refused():
    one = Knob("one", 1, "", low=1, high=2)
    for knobs, said in (
        ((one, one), "declares the knob 'one' twice"),
        ((replace(one, name="gate"),), "declares the knob 'gate' twice"),
        ((replace(one, when={"other": (True,)}),), "depends on 'other'"),
    ):
        with pytest.raises(TechniqueError, match=said):
            type("Mine", (PlainRetrieval,), {"KNOBS": knobs})


def test_filter_keeps_the_order_of_the_search_and_what_cannot_be_judged(run):
    def kept(*keys, **more):
        given = {"question": QUESTION, "over": POOL, **more}
        out, asked = run(Filter, grading(dict.fromkeys(keys, "relevant") | dict.fromkeys("x", "perhaps")), **given)
        return ids(out), out.fallbacks, len(asked)

    assert kept("d", "b", "a") == ("abd", [], 6)
    assert kept("b", "c", "d", pool=3) == ("bc", [], 3)
    assert kept() == ("a", [], 6)  # if none survives the first is kept, unless none is wanted
    assert kept(empty_ok=True) == ("", [], 6)
    out, asked = run(Filter, grading({"d": "relevant", "b": "perhaps", "e": "?"}), question=QUESTION, over=POOL)
    assert (ids(out), out.fallbacks, len(asked)) == ("bde", ["keep:2", "keep:5"], 8)
    assert all(one.properties["passage_is"]["enum"] == ["relevant", "irrelevant"] for one in asked)


ANSWER = "It must be sugar, and soon."


def qa_rag(run, question="abcdef", answer="cgahij", *, grades=None, written=ANSWER, **given):
    over = Ranked(question)
    over.rankings[ANSWER] = answer
    out, asked = run(QARAG, grading(grades or {}, written), question=QUESTION, over=over, **given)
    return ids(out), out, asked, over.searches


def test_qa_rag_reranks_each_track_for_the_question_and_gives_it_half(run):
    reranker = FixedReranker()
    found, out, asked, searches = qa_rag(run, reranker=reranker)
    assert searches == [((QUESTION, ANSWER), 12)]
    assert queries(out) == [("original", QUESTION), ("hypothetical_answer", ANSWER)]
    assert found == "fjeidh"  # f e d from the question's track, j i h from the answer's, in turn
    assert reranker.asked == [(QUESTION, "abcdefghij")]  # what both found is judged once; the answer has no say
    assert [(step.kind, step.stage) for step in out.steps] == [("lm", 1), ("search", 2), ("rerank", 3)]
    # By grades, the question's track is c e a b d f, the answer's c h g a i j; c and a are in both.
    found, out, asked, _ = qa_rag(run, grades={"c": "relevant", "e": "relevant", "h": "related"})
    assert (found, len(asked)) == ("cehagb", 11)
    assert all(QUESTION in one.text and ANSWER not in one.text for one in asked[1:])


@pytest.mark.parametrize(
    ("tracks", "knobs", "found"),
    [
        (("abcdef", "cgahij"), {}, "acbgdh"),  # a passage of both frees a place for the next best
        (("abcdef", "g"), {}, "agbcde"),  # what a short track leaves over goes to the other
        (("abc", "def"), {"max_passages": 3}, "adb"),  # an odd budget gives the question one more
        (("abcdef", "cgahij"), {"track": "answer", "max_passages": 4}, "cgah"),  # the weaker form that QB-RAG names
    ],
)
def test_qa_rag_without_reranking(run, tracks, knobs, found):
    rerank = {} if "track" in knobs else {"rerank": False}
    got, _, asked, _ = qa_rag(run, *tracks, **knobs, **rerank)
    assert (got, len(asked)) == (found, 1)


def test_without_an_answer_the_question_has_all_places_and_every_fallback_is_named(run):
    found, out, _, searches = qa_rag(run, written="none", max_passages=3, grades={"e": "relevant", "a": "?"})
    assert (found, searches, out.fallbacks) == ("eab", [((QUESTION,), 12)], ["answer", "grade"])

"""What is searched, held against a filter and the labels of questions before a run."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pytest

from querywright.data.types import Label, Passage, Question
from querywright.errors import InputError
from querywright.retrieval.bm25 import BM25Retriever
from querywright.retrieval.callable import as_retriever
from querywright.retrieval.checks import check_filter, tell_passages, tell_searched
from querywright.retrieval.replay import ReplayRetriever

ROWS = [
    Passage("tyre", "Wide tyres want two bar.", metadata={"year": 2023, "kind": "wheels", "new": True}),
    Passage("chain", "A chain is worn at 309 mm.", metadata={"year": 2022, "kind": "drive", "new": False}),
    Passage("pads", "Pads are changed at 1.5 mm.", metadata={"year": 2024, "kind": "brakes", "new": True}),
]


def asked(*evidence):
    return [
        Question(f"q{n}", "How much air?", evidence=dict.fromkeys(ids, Label.ENTAILED))
        for n, ids in enumerate(evidence)
    ]


def told(questions, retriever):
    said = []
    tell_searched(questions, retriever, {}, said.append)
    return said


@pytest.fixture
def bicycles(home, build):
    def opened(where=None, rows=ROWS):
        build(home, "bicycles", rows)
        return BM25Retriever("bicycles", home=home, where=where)

    return opened


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ({"year": "2023"}, "'year' has numbers such as 2022, 2024, 2023"),
        ({"yaer": 2023}, r"no passage has the metadata key 'yaer' \(did you mean year\?\); available: kind, new, year"),
        ({"new": "true"}, "'new' has Booleans such as"),
        ({"new": 1}, "'new' has Booleans such as"),
        ({"kind": "Wheels"}, """'kind' has strings such as .*match {"kind": "Wheels"}: 0"""),
        ({"kind": {"$gt": 3}}, "'kind' has strings such as"),
        ({"year": {"$in": ["2022", "2023"]}}, "'year' has numbers such as"),
        ({"year": 2023, "kind": "drive"}, '{"year": 2023}: 1.*{"kind": "drive"}: 1'),
        ({"$or": [{"year": 1}, {"colour": "red"}]}, "'year' has numbers .*no passage has the metadata key 'colour'"),
    ],
)
def test_a_filter_that_passes_nothing_is_refused_with_what_its_keys_hold(bicycles, where, said):
    with pytest.raises(InputError, match=f"matches 0 of 3 passages, so searches find nothing: .*{said}"):
        check_filter(bicycles(where))


def test_metadata_of_a_csv_are_texts(bicycles):
    rows = [Passage("a", "b", metadata={"year": "2023"})]
    with pytest.raises(InputError, match=r"""'year' has strings such as "2023" .*{"year": 2023}: 0"""):
        check_filter(bicycles({"year": 2023}, rows))


def test_questions_whose_evidence_a_filter_removes_are_counted(bicycles):
    questions = asked(["tyre"], ["chain"], ["chain", "pads"], ["chain", "tyre"], [])
    assert told(questions, bicycles()) == []
    (line,) = told(questions, bicycles({"year": {"$gte": 2023}}))
    assert "matches 2 of 3 passages. Questions that lose all labeled passages: 1 of 5" in line
    assert "lose some labeled passages: 2" in line
    assert told(questions, bicycles({"year": {"$gt": 2000}})) == []


def test_each_label_of_a_missing_passage_is_reported_once():
    said: list[str] = []
    former = {"gears": Passage("gears", "Gears are set at the stand.")}
    tell_passages(asked(["gears", "lamp"], ["tyre", "gears"], ["gears"]), ROWS, None, None, said.append, former)
    assert [line.count("no longer exist, and no passage contains most of their text: 'gears'") for line in said] == [
        1, 1, 1, 0, 0, 0,
    ]  # fmt: skip
    assert ["scores above 0 on this question" in line for line in said[:3]] == [False, False, True]
    assert "for 1 of 3 questions, no helpful passage is in the collection" in said[3]
    assert "4 of 5 labels of helpful passages" in said[4]
    assert "helpful passages that are not in the collection: ['lamp'] (1 of 2 helpful; passages in the" in said[5]


def test_passages_that_are_not_useful_may_be_missing():
    said: list[str] = []
    former = {id: Passage(id, f"The text of {id}.") for id in ("gears", "bell", "lamp")}
    none, useful = Label.NOT_USEFUL, Label.USEFUL
    questions = [
        Question("q1", "?", evidence={"gears": none, "unknown": none, "tyre": useful}),
        Question("q2", "?", evidence={"gears": useful, "bell": none, "lamp": Label.ENTAILED, "tyre": none}),
        Question("q3", "?", evidence={"gears": useful, "tyre": useful}),
    ]
    tell_passages(questions, ROWS, None, None, said.append, former)
    assert said == [
        "warning: question 'q2' ('?'): labeled passages no longer exist, and no passage contains most of their text: "
        "'gears' ('The text of gears.' ...), 'lamp' ('The text of lamp.' ...); no search scores above 0 on this "
        "question; label a passage in the collection, and remove these labels",
        "warning: question 'q3' ('?'): labeled passages no longer exist, and no passage contains most of their text: "
        "'gears' ('The text of gears.' ...); label a passage in the collection, and "
        "remove these labels",
    ]


@pytest.mark.parametrize("retriever", ["bm25", "function"])
def test_labels_that_are_all_not_useful_are_reported(home, build, retriever):
    build(home, "bicycles", ROWS)
    index = BM25Retriever("bicycles", home=home)
    searched = index if retriever == "bm25" else as_retriever(lambda query, k: index.search([query], k)[0])
    (useful, *rest) = asked(["tyre"], ["tyre", "chain"], [])
    questions = [useful, *(replace(one, evidence=dict.fromkeys(one.evidence, Label.NOT_USEFUL)) for one in rest)]
    said = [line for line in told(questions, searched) if "labeled as helpful" in line]
    assert [line.partition(" (")[0] for line in said] == [
        "warning: for 1 of 3 questions, no passage is labeled as helpful"
    ]
    assert not any("labeled as helpful" in line for line in told([useful, rest[-1]], searched))


def test_a_key_that_no_passage_has_is_reported_although_the_filter_passes(bicycles):
    (line,) = told(asked(["tyre"]), bicycles({"yaer": {"$ne": 2023}}))
    assert "no passage has the metadata key 'yaer' (did you mean year?)" in line


def test_labeled_passages_whose_text_has_another_id_are_counted(bicycles):
    copies = [Passage("tyre 2", "wide  tyres want TWO bar."), Passage("chain 2", ROWS[1].text)]
    (line,) = told(asked(["tyre"], ["tyre"], ["chain", "chain 2"], ["pads"]), bicycles(rows=[*ROWS, *copies]))
    assert "such as 'tyre' and 'tyre 2' (labeled passages: 1, questions: 2 of 4)" in line


def test_ids_that_no_label_names_are_reported_with_one_of_each():
    for given, id in (
        (lambda row: row.text, "'text:"),
        (lambda row: {"id": str(uuid4()), "text": row.text}, "'text:"),
    ):
        retriever = as_retriever(lambda query, k, given=given: [given(row) for row in ROWS])
        (line,) = told(asked(["tyre"], ["tyre"]), retriever)
        assert "no label refers to a passage" in line
        assert f"returns IDs such as {id}" in line
        assert "the labels use IDs such as 'tyre'" in line


def test_ids_in_the_metadata_that_labels_name_are_the_ids():
    own = {row.id: str(uuid4()) for row in ROWS}
    for item in (
        lambda row: {"id": own[row.id], "text": row.text, "metadata": {"source": row.id}},
        lambda row: Passage(own[row.id], row.text, metadata={"source": row.id}),
    ):
        inner = as_retriever(lambda query, k, item=item: [item(row) for row in ROWS])
        retriever, before = ReplayRetriever(inner, store=None, deepest=5), inner.fingerprint
        (line,) = told(asked(["tyre"], ["pads"]), retriever)
        assert "the labels use the passages' metadata key 'source'" in line
        assert [hit.passage.id for hit in retriever.search(["How much air?"], 5)[0]] == ["tyre", "chain", "pads"]
        assert inner.fingerprint != before


def test_passages_without_an_id_beside_others_are_counted():
    found = [ROWS[0], "A text.", "Another text."]
    (line,) = told(asked(["tyre"]), as_retriever(lambda query, k: found))
    assert "2 of the 3 passages" in line
    assert "have no ID" in line
    assert told(asked(["tyre"]), as_retriever(lambda query, k: ROWS)) == []


def test_a_retriever_that_finds_nothing_is_reported():
    (line,) = told(asked(["tyre"], ["chain"]), as_retriever(lambda query, k: []))
    assert "found no passages for the first labeled questions (2 searched)" in line


def test_a_retriever_that_fails_is_left_to_the_run():
    def fails(query, k):
        raise OSError("the server is down")

    assert told(asked(["tyre"]), as_retriever(fails)) == []

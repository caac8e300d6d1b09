"""Labels follow the passages of documents through edits, and the share of a collection that changed is measured."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import dspy
import pytest

import querywright as qw
from querywright.data import Label, Passage, Question, read_documents
from querywright.data.labels import PassageLabel, with_labels, write_labels
from querywright.errors import InputError
from querywright.optimize.labels import earlier_labels
from querywright.programs import TECHNIQUES, make_program
from querywright.retrieval.bm25 import BM25Retriever
from querywright.retrieval.checks import current_labels, tell_passages
from querywright.retrieval.edits import (
    follow_labels,
    follow_rows,
    former_passages,
    sample_passages,
    settle_labels,
    share_changed,
)
from querywright.retrieval.engines import open_retriever, opened
from querywright.retrieval.hybrid import HybridRetriever

pytest.importorskip("semantic_text_splitter")


def prose(topic, count=5):
    """Return sentences with words that no other topic has."""
    return " ".join(
        f"The {topic} {topic}{n} turns into {topic}{n + 1} after step {n} of {topic}." for n in range(count)
    )


MD = f"""# Garden

{prose("soil")}

## Roses

{prose("rose", 12)}

{prose("thorn", 12)}

## Tulips

{prose("tulip", 6)}

| month | work |
| --- | --- |
| May | cut tulips |

## Tools

Use these:

```sh
spade --deep 3

rake --wide 2
```
"""
RST = f"""
=======
Kitchen
=======

{prose("kettle")}

Ovens
=====

{prose("oven", 12)}

.. note::

    {prose("door", 3)}

Sinks
=====

{prose("sink", 8)}
"""
FACTS = {
    "md": ("soil2", "rose3", "thorn9", "tulip4", "cut tulips", "rake --wide"),
    "rst": ("kettle1", "oven7", "door1", "sink6"),
}


def replaced(page, old, new):
    def edit(pages):
        assert old in pages[page]
        return {**pages, page: pages[page].replace(old, new)}

    return edit


def renamed(page, name):
    return lambda pages: {name if key == page else key: text for key, text in pages.items()}


def in_front(page, text):
    return lambda pages: {**pages, page: text + pages[page]}


def moved_section(pages):
    tulips = pages["a.md"].partition("## Tulips")[2].partition("## Tools")[0]
    rest = pages["a.md"].replace(f"## Tulips{tulips}", "")
    return {**pages, "a.md": f"{rest}\n## Tulips{tulips}"}


def to_another_page(pages):
    front, heading, back = pages["a.md"].partition("## Tulips")
    return {**pages, "a.md": front, "c.md": f"# C\n\n{heading}{back}"}


SOIL, ROSE = prose("soil"), prose("rose", 12)
EDITS = [
    # What is done, how, and how many of the 10 labels: keep their id, follow, are lost.
    ("two lines in front of a page", in_front("a.md", "Draft.\nSee the wiki.\n\n"), 10, 0, 0),
    ("two lines in front of a page of rst", in_front("b.rst", "Draft.\nSee the wiki.\n\n"), 10, 0, 0),
    ("a new page", lambda pages: {**pages, "c.md": "# C\n\nNew."}, 10, 0, 0),
    ("a new section", replaced("a.md", "## Tulips", "## Lilies\n\nThey need sun.\n\n## Tulips"), 10, 0, 0),
    ("a new paragraph at the end of a section", replaced("a.md", "## Tulips", "Roses are old.\n\n## Tulips"), 10, 0, 0),
    ("a new paragraph in front of a section", replaced("a.md", ROSE, f"Roses are old.\n\n{ROSE}"), 10, 0, 0),
    ("a word", replaced("a.md", "after step 3 of rose", "after rest 3 of rose"), 9, 1, 0),
    ("a number in a table", replaced("a.md", "| May |", "| June |"), 8, 2, 0),
    ("a line of code", replaced("a.md", "spade --deep 3", "spade --deep 4"), 9, 1, 0),
    ("a sentence less", replaced("a.md", "The rose rose0 turns into rose1 after step 0 of rose. ", ""), 9, 1, 0),
    ("a heading renamed", replaced("a.md", "## Tulips", "## Tulips and bulbs"), 8, 2, 0),
    ("the title renamed", replaced("a.md", "# Garden", "# The garden"), 9, 1, 0),
    ("a heading of rst renamed", replaced("b.rst", "Ovens\n=====", "Stoves\n======"), 8, 2, 0),
    ("a page renamed", renamed("a.md", "yard.md"), 4, 6, 0),
    ("a page moved into a folder", renamed("b.rst", "home/b.rst"), 6, 4, 0),
    ("a section moved", moved_section, 10, 0, 0),
    ("a section moved to another page", to_another_page, 7, 3, 0),
    ("a section deleted", lambda pages: {**pages, "b.rst": pages["b.rst"].partition("Sinks")[0]}, 9, 0, 1),
    ("a page deleted", lambda pages: {"a.md": pages["a.md"]}, 6, 0, 4),
    ("a section written anew", replaced("a.md", SOIL, prose("clay")), 9, 0, 1),
]  # fmt: skip


@pytest.mark.parametrize(
    ("edit", "kept", "followed", "lost"), [one[1:] for one in EDITS], ids=[one[0] for one in EDITS]
)
def test_labels_follow_edits_of_pages(tmp_path, edit, kept, followed, lost):
    def passages(pages, name):
        for page, text in pages.items():
            path = tmp_path / name / "docs" / page
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return {one.id: one for one in read_documents(tmp_path / name / "docs").passages}

    pages = {"a.md": MD, "b.rst": RST}
    before, after = passages(pages, "before"), passages(edit(pages), "after")
    facts = [fact for found in FACTS.values() for fact in found]
    ids = {fact: next(id for id, one in before.items() if fact in one.text) for fact in facts}
    questions = [Question(fact, "?", evidence={ids[fact]: Label.ENTAILED}) for fact in facts]
    former = {id: one for id, one in before.items() if id not in after}
    told: list[str] = []
    found = follow_labels(questions, after.values, former, told.append, told.append)
    now = {one.id: next(iter(one.evidence)) for one in found}
    words = {id: " ".join(one.text.split()) for id, one in (before | after).items()}
    changed = {ids[fact] for fact, id in now.items() if id in after and words[ids[fact]] not in words[id]}
    assert [line.count(", with different text") for line in told[:1]] == [min(len(changed), 3)] * bool(followed)
    counts = [0, 0, 0]
    for fact, id in now.items():
        counts[2 if id not in after else 0 if id == ids[fact] else 1] += 1
        assert id not in after or fact in after[id].text, "a label follows the text that it is about"
    assert not any("not in the collection" in line for line in told), "a deleted passage is reported once"
    assert counts == [kept, followed, lost]
    tell_passages(found, after.values(), None, None, told.append, former)
    assert [line for line in told if "no longer exist" in line] == [
        line for one in found if one.evidence.keys().isdisjoint(after) for line in told if repr(one.id) in line
    ]


@pytest.mark.parametrize("edit", ["split", "copied"])
def test_the_parts_of_a_passage_or_an_edited_passage_and_its_copy_share_its_label(edit):
    def passage(id, text):
        return Passage(id, text, metadata={"file": id.partition("#")[0]})

    text, rest = prose("rose", 6), prose("thorn", 6)
    was = {"a.md#rose-0": passage("a.md#rose-0", f"{text} {rest}")}
    copy, edited = ("a.md#bush-1", "a.md#rose-2") if edit == "split" else ("b.md#rose-1", "a.md#rose-2")
    now = [passage(copy, text), passage(edited, rest), passage("a.md#tulip-3", prose("tulip", 6))]
    if edit == "copied":
        now = [passage(copy, f"{text} {rest}"), passage(edited, f"{text} {rest}".replace("step 0", "step 9")),
               passage("a.md#sibling-4", f"{text} {rest}".replace("step 1", "step 7"))]  # fmt: skip

    def followed(question):
        told: list[str] = []
        (found,) = follow_labels([question], lambda: now, was, told.append, told.append)
        return found, told

    question = Question("q", "?", evidence={"a.md#rose-0": Label.ENTAILED})
    found, told = followed(question)
    assert found.evidence == {copy: Label.ENTAILED, edited: Label.ENTAILED}
    assert [set(group) for group in found.alternatives] == [{copy, edited}]
    assert "the text of the labeled passage 'a.md#rose-0' is now in 2 passages" in told[1]
    useful, useless = ({**question.evidence, edited: one} for one in (Label.USEFUL, Label.NOT_USEFUL))
    found, told = followed(replace(question, evidence=useful))
    assert (found.evidence, found.alternatives, told) == ({edited: Label.USEFUL}, (), []), "a person chose a part"
    found, told = followed(replace(question, evidence={"a.md#rose-0": Label.NOT_USEFUL}))
    assert (found.alternatives, len(told)) == ((), 1), "nothing needs to be found"
    found, told = followed(replace(question, evidence=useless))
    assert found.evidence == {copy: Label.ENTAILED, edited: Label.NOT_USEFUL}
    assert found.alternatives == ()
    assert len(told) == 1, "only one part is left, so there is nothing to check"
    found, told = followed(replace(question, evidence=useless, assessors={edited: (JUDGED,)}))
    assert found.evidence == {copy: Label.ENTAILED, edited: Label.ENTAILED}, "a person precedes a judge"


def test_a_similar_passage_does_not_take_or_share_a_label():
    dose, more = "the dose is {} mg", prose("tablet", 8)
    was = {"a.md#aspirin-1": Passage("a.md#aspirin-1", f"aspirin {dose.format(5)} {more}", metadata={"file": "a.md"})}
    now = [Passage("a.md#aspirin-2", f"aspirin {dose.format(5)} {more} updated", metadata={"file": "a.md"}),
           Passage("a.md#ibuprofen-3", f"ibuprofen {dose.format(9)} {more}", metadata={"file": "a.md"})]  # fmt: skip
    for evidence, label in (({}, None), ({"a.md#ibuprofen-3": Label.NOT_USEFUL}, Label.NOT_USEFUL)):
        question = Question("q", "?", evidence={"a.md#aspirin-1": Label.ENTAILED, **evidence})
        (found,) = follow_labels([question], lambda: now, was, print, print)
        assert found.evidence.get("a.md#aspirin-2") == Label.ENTAILED
        assert found.evidence.get("a.md#ibuprofen-3") == label
    same = [Passage("a.md#aspirin-2", now[0].text), Passage("a.md#aspirin-3", now[1].text)]  # under the same heading
    question = Question("q", "?", evidence={"a.md#aspirin-1": Label.ENTAILED})
    (found,) = follow_labels([question], lambda: same, was, print, print)
    assert found.evidence == {"a.md#aspirin-2": Label.ENTAILED}


def test_a_label_follows_the_same_passage_into_a_renamed_file_and_not_a_longer_copy():
    text, question = prose("rose", 6), Question("q", "?", evidence={"pool.md#rose-1": Label.ENTAILED})
    was, longer = {"pool.md#rose-1": Passage("pool.md#rose-1", text)}, Passage("copy.md#ours-2", f"# Ours {text}")
    renamed, copy = (Passage(f"{file}.md#rose-1", text) for file in ("threads", "copy"))
    for now, ids in (([longer, renamed], {renamed.id}), ([copy, renamed], {copy.id, renamed.id})):
        told: list[str] = []
        (found,) = follow_labels([question], lambda now=now: now, was, told.append, told.append)
        assert found.evidence.keys() == ids
        assert any("is now in 2 passages" in line for line in told) == (len(ids) > 1)


def test_labels_of_a_file_name_the_collection_that_has_their_passages():
    small = {f"s#{n}": Passage(f"s#{n}", prose(f"rose{n}", 6)) for n in range(4)}
    large = {f"l#{n}": Passage(f"l#{n}", f"{small[f's#{2 * n}'].text} {small[f's#{2 * n + 1}'].text}") for n in (0, 1)}
    told: list[str] = []
    (found,) = settle_labels([Question("q", "?", evidence={"l#0": Label.ENTAILED})], [lambda: small, lambda: large],
                             {"l#0": large["l#0"]}, told.append, told.append)  # fmt: skip
    assert (told, found.evidence["l#0"]) == ([], Label.ENTAILED)
    assert found.evidence.keys() == {"l#0", "s#0", "s#1"}


JUDGED = "usefulness:made/judge"
CONFLICTS = [
    # The labels of the former and of the current passage, with their assessors, and the label that is used.
    (("ENTAILED", "person"), ("NOT_USEFUL", "person"), "NOT_USEFUL"),
    (("NOT_USEFUL", "person"), ("ENTAILED", JUDGED), "NOT_USEFUL"),
    (("USEFUL", JUDGED), ("NOT_USEFUL", JUDGED), "NOT_USEFUL"),
    (("USEFUL", "person"), ("USEFUL", "person"), "USEFUL"),
]


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(("former", "current", "used"), CONFLICTS)
def test_of_two_labels_a_persons_is_used_and_then_the_current_passages(former, current, used, order):
    was, now = Passage("a.md#0", prose("rose", 6)), Passage("a.md#1", f"New. {prose('rose', 6)}")
    rows = [
        PassageLabel(question_id="q", passage_id=one.id, label=Label(label), by=by, text=one.text)
        for one, (label, by) in zip((was, now), (former, current), strict=True)
    ][::order]
    (question,) = with_labels([Question("q", "What of rose2?")], rows)
    told: list[str] = []
    (found,) = follow_labels([question], lambda: [now], {was.id: was}, told.append, told.append)
    assert found.evidence == {now.id: Label(used)}
    (row,) = follow_rows(rows, [now], {was.id: was}, told.append)
    assert (row.passage_id, row.label, row.text) == (now.id, Label(used), now.text)
    assert found.assessors == {now.id: (row.by,)}
    conflicts = [line for line in told if "several labels name the passage 'a.md#1'" in line]
    assert len(conflicts) == (0 if former == current else 2)
    assert all(f"{used} is used. Remove the wrong labels" in line for line in conflicts)


@pytest.fixture
def edited(tmp_path):
    """Return questions, the workspace of the collection "mine", and two labels: an edited and a deleted passage."""
    docs, home = tmp_path / "docs", tmp_path / "home"
    docs.mkdir()
    (docs / "a.md").write_text(MD)
    (docs / "b.rst").write_text(RST)
    first = qw.ChromaRetriever.build("mine", docs, home=home)
    (soil,) = (one.id for one in first.passages() if "soil2" in one.text)
    (sink,) = (one.id for one in first.passages() if "sink6" in one.text)
    sample = sample_passages(first.passages())
    asked = [{"id": "q", "question": "What does soil2 turn into?", "evidence": [soil]},
             {"id": "r", "question": "What does sink6 turn into?", "evidence": [sink]}]  # fmt: skip
    (docs / "a.md").write_text(MD.replace("The soil soil0", "Soil"))
    (docs / "b.rst").write_text(RST.partition("Sinks")[0])
    again = qw.ChromaRetriever.build("mine", docs, home=home)
    assert 0 < share_changed(sample, again.passages()) < 0.5
    assert set(former_passages("mine", home)) == set(former_passages(again)) == {soil, sink}
    return asked, home, soil, sink


OPENED = {
    "name": lambda home: "mine",
    "dense": lambda home: qw.ChromaRetriever("mine", home=home),
    "bm25": lambda home: BM25Retriever("mine", home=home),
    "hybrid": lambda home: HybridRetriever(
        [qw.ChromaRetriever("mine", home=home), BM25Retriever("mine", home=home)], weights=[1, 2]
    ),
}  # fmt: skip


@pytest.mark.parametrize("opened", OPENED.values(), ids=OPENED)
def test_a_comparison_follows_labels_whether_the_retriever_is_a_name_or_an_object(edited, opened, tmp_path):
    asked, home, soil, sink = edited
    place = home if opened(home) == "mine" else tmp_path / "other"
    found = qw.compare(
        ["plain"], asked, retriever=opened(home), reader=None, metrics=["recall@5"], home=place, tell=[].append
    )
    assert found.arm("plain").mean("recall@5").value == 0.5
    (matched, lost), others = found.hints[:2], found.hints[2:]
    assert f"labeled passages that moved or changed: 1 ({soil!r} is now " in matched
    assert f"contains most of their text: {sink!r} (" in lost
    assert "no search scores above 0 on this question; label a passage in the collection" in lost
    assert not any("in the collection" in line for line in others)


@pytest.mark.parametrize("opened", [OPENED["name"], OPENED["hybrid"]], ids=["name", "hybrid"])
def test_a_study_and_a_compilation_follow_labels_and_their_reports_say_so(edited, opened, tmp_path):
    asked, home, soil, sink = edited
    splits = {"train": asked[1:], "dev": [{**asked[0], "id": "d"}], "test": [{**asked[0], "id": "t"}]}
    for run, techniques in ((qw.study, ["plain"]), (qw.compile, "plain")):
        told: list[str] = []
        found = run(
            techniques, splits, retriever=opened(home), reader=None, trials=1, home=home, tell=told.append,
            **{"objectives" if run is qw.study else "objective": "recall@5"},
        )  # fmt: skip
        matched, lost, *_ = found.compared.all_notes
        assert f"labeled passages that moved or changed: 1 ({soil!r} is now " in matched
        assert f"contains most of their text: {sink!r} (" in lost
        assert told[:2] == [matched, lost]
        page = html.unescape(found.report(tmp_path / "report.html").read_text())
        assert matched in page
        assert lost in page
        assert found.compared.arms[0].mean("recall@5").value == 1.0


@pytest.mark.parametrize("engine", ["dense", "hybrid", "bm25"])
def test_all_engines_of_an_open_retriever_search_what_it_opened_and_a_rebuild_is_reported_once(tmp_path, engine):
    docs, home = tmp_path / "docs", tmp_path / "home"
    docs.mkdir()
    (docs / "a.md").write_text(MD)
    (docs / "b.rst").write_text(RST)
    qw.ChromaRetriever.build("mine", docs, home=home)
    held = open_retriever("mine", engine=engine, home=home)
    labeled = {word: one.id for one in held.passages() for word in ("soil2", "sink6") if word in one.text}
    asked = [{"id": word, "question": f"What does {word} turn into?", "evidence": [id]} for word, id in labeled.items()]
    arms = ["plain", "plain@bm25", "plain@hybrid"]
    options = {"reader": None, "metrics": ["recall@5"], "references": False}

    def recalls(retriever, home=home):
        found = qw.compare(arms, asked, retriever=retriever, home=home, tell=[].append, **options)
        return [found.arm(name).mean("recall@5").value for name in arms], [
            line for line in found.hints if "rebuilt" in line or "moved" in line
        ]

    assert recalls(held) == ([1.0, 1.0, 1.0], [])
    qw.ChromaRetriever.build("mine", docs, home=home)  # unchanged
    assert recalls(held) == ([1.0, 1.0, 1.0], [])
    (docs / "a.md").write_text(MD.replace("The soil soil0", "Soil"))
    (docs / "b.rst").write_text(RST.partition("Sinks")[0])
    again = qw.ChromaRetriever.build("mine", docs, home=home)
    for place in (home, tmp_path / "other"):
        values, (line,) = recalls(held, place)
        assert values == [1.0, 1.0, 1.0]
        assert "the collection 'mine' was rebuilt after the retriever was opened" in line
        assert "open it again, for example with ChromaRetriever('mine')" in line
    values, (line,) = recalls(again)
    assert values == [0.5, 0.5, 0.5]
    assert "moved or changed: 1" in line
    splits = {part: [{**one, "id": f"{one['id']}{part}"} for one in asked] for part in ("train", "dev", "test")}
    for run, techniques in ((qw.study, ["plain"]), (qw.compile, "plain")):
        told: list[str] = []
        found = run(techniques, splits, retriever=held, reader=None, trials=1, home=home, tell=told.append,
                    **{"objectives" if run is qw.study else "objective": "recall@5"})  # fmt: skip
        assert sum("was rebuilt" in line for line in told) == 1
        assert sum("was rebuilt" in line for line in found.compared.all_notes) == 1
        assert found.compared.arms[0].mean("recall@5").value == 1.0


class Own(dspy.Module):
    """A program that searches the first retriever in a list or dict."""

    def __init__(self, indexes):
        super().__init__()
        self.indexes = indexes

    def forward(self, question):
        (hits,) = self.indexes[next(iter(self.indexes)) if isinstance(self.indexes, dict) else 0].search([question], 5)
        return dspy.Prediction(passages=[hit.passage for hit in hits])


class Worst(Own):
    """A program that shows only the last passage."""

    def forward(self, question):
        return dspy.Prediction(passages=super().forward(question).passages[-1:])


def found_in(index, question):
    return [hit.passage for hit in index.search([question], 1)[0]]


def holders(index):
    """Return programs that hold a retriever, by the place where they hold it."""

    class Held(dspy.Module):
        inner = index

        def forward(self, question):
            return found_in(self.inner, question)

    return {
        "list": Own([index]), "dict": Own({"mine": index}), "class": Held(), "partial": partial(found_in, index),
        "closure": lambda question: found_in(index, question),
    }  # fmt: skip


def with_new_ids(passages):
    return [replace(one, id=f"new-{one.id}") for one in passages]


def with_new_texts(passages):
    return [replace(one, text=f"Really. {one.text}") for one in passages]


def with_an_addition(passages):
    return [*passages, Passage("new", "A new passage.")]


BEFORE = "searched the collection 'mine' as it was before it was rebuilt"


@pytest.mark.parametrize("change", [with_new_ids, with_new_texts, with_an_addition])
@pytest.mark.parametrize("engine", ["dense", "bm25", "hybrid"])
def test_a_custom_program_that_searches_a_collection_as_it_was_before_a_rebuild_is_reported(
    edited, tmp_path, change, engine
):
    asked, home, *_ = edited

    def warned(programs, retriever="mine"):
        told: list[str] = []
        found = qw.compare({"plain": "plain", **programs}, asked, retriever=retriever, reader=None, home=home,
                           tell=told.append, metrics=["recall@5"], references=False)  # fmt: skip
        page = html.unescape(found.report(tmp_path / "report.html").read_text())
        lines = [line for line in told if "rebuilt" in line or "distinct passages" in line]
        assert all(line in found.hints and line in repr(found) and line in page for line in lines)
        return lines

    held = open_retriever("mine", engine=engine, home=home)
    assert warned(holders(held)) == []
    qw.ChromaRetriever.build("mine", change([*held.passages()]), home=home, prune=True)
    lines = warned(holders(held))
    assert [line.partition(" so ")[0] for line in lines] == [f"warning: {name} {BEFORE}," for name in holders(held)]
    assert all("open its retriever again, or create the program again" in line for line in lines)
    assert warned(holders(open_retriever("mine", engine=engine, home=home))) == []
    (line,) = warned(holders(held), held)  # all arms search the same passages
    assert "the collection 'mine' was rebuilt after the retriever was opened" in line
    (line,) = warned({"old": make_program("plain", held, reader=None)})
    assert "the collection 'mine' was rebuilt after the retriever of old was opened" in line
    first, *others = warned({"old": make_program("plain", held, reader=None), **holders(held)})
    assert first == line
    assert others == lines, "a warning about one arm does not replace the warnings about the others"


def test_labels_follow_the_current_passages_also_if_an_arm_searches_the_earlier_ones(edited):
    asked, home, *_ = edited
    held = open_retriever("mine", home=home)
    qw.ChromaRetriever.build("mine", with_new_ids([*held.passages()]), home=home, prune=True)
    arms, told = {"plain": "plain", "old": make_program("plain", held, reader=None)}, []
    found = qw.compare(arms, asked, retriever="mine", reader=None, home=home, tell=told.append, metrics=["recall@5"],
                       references=False)  # fmt: skip
    assert any(line.startswith("labeled passages that moved or changed: ") for line in told)
    assert found.arm("plain").average("recall@5") == found.arm("old").average("recall@5") > 0


@patch.dict(TECHNIQUES)  # a study registers its techniques
@pytest.mark.parametrize("change", [with_new_ids, with_new_texts, with_an_addition])
@pytest.mark.parametrize("run", [qw.study, qw.compile])
def test_a_study_and_a_compilation_report_all_techniques_that_search_a_collection_before_a_rebuild(edited, run, change):
    asked, home, *_ = edited
    held = open_retriever("mine", home=home)
    splits = {part: [{**one, "id": f"{one['id']}{part}"} for one in asked] for part in ("train", "dev", "test")}
    techniques = ["plain", Own([held]), Worst([held])] if run is qw.study else Own([held])

    def warned():
        told: list[str] = []
        found = run(techniques, splits, retriever="mine", reader=None, trials=3, home=home, tell=told.append,
                    **{"objectives" if run is qw.study else "objective": "recall@5"})  # fmt: skip
        lines = [line for line in told if "rebuilt" in line or "distinct passages" in line]
        assert all(line in found.compared.all_notes for line in lines)
        assert not any("Worst" in arm.name for arm in found.compared.arms), "this technique does not reach test"
        return [line.partition(" so ")[0] for line in lines]

    assert warned() == []
    qw.ChromaRetriever.build("mine", change([*held.passages()]), home=home, prune=True)
    names = ["Own", "Worst"] if run is qw.study else ["Own"]
    assert warned() == [f"warning: {name} {BEFORE}," for name in names]


@patch.dict(TECHNIQUES)
def test_passages_of_a_custom_program_that_the_collection_does_not_have_are_reported(edited, tmp_path):
    asked, home, *_ = edited
    qw.ChromaRetriever.build("elsewhere", with_new_ids(open_retriever("mine", home=home).passages()), home=home)
    elsewhere = open_retriever("elsewhere", home=home)
    own, given = Own([elsewhere]), {"retriever": "mine", "reader": None, "home": home, "metrics": ["recall@5"]}
    told: list[str] = []

    def texts(question):
        return ["A text without an ID."]

    found = qw.compare({"plain": "plain", "own": own, "texts": texts}, asked, tell=told.append, references=False,
                       **given)  # fmt: skip
    first, second = (line for line in told if "distinct passages" in line)
    assert re.match(
        r"warning: own: (\d) of \1 distinct passages that it showed are not in the collection 'mine', such ", first
    )
    assert "If the program has its own retriever, open the retriever again after you index" in first
    assert second.startswith("warning: texts: 1 of 1 distinct passages")
    assert found.hints[-2:] == (first, second)
    searching = make_program("plain", lambda query: elsewhere.search([query], 5)[0], reader=None)
    qw.compare({"plain": "plain", "function": searching}, asked, tell=told.append, references=False, **given)
    assert told[-1].startswith("warning: function: "), "a function cannot look up ids, but the collection can"
    assert "distinct passages that it showed are not in the collection 'mine'" in told[-1]
    splits = {part: [{**one, "id": f"{one['id']}{part}"} for one in asked] for part in ("train", "dev", "test")}
    for run, techniques in ((qw.study, ["plain", own]), (qw.compile, own)):
        told = []
        found = run(techniques, splits, retriever="mine", reader=None, trials=2, home=home, tell=told.append,
                    **{"objectives" if run is qw.study else "objective": "recall@5"})  # fmt: skip
        (line,) = (one for one in told if "distinct passages" in one)
        assert line in found.compared.all_notes
        assert line in repr(found.compared if run is qw.study else found)
        assert line.startswith("warning: Own: ")


def test_a_label_file_follows_edits_in_a_workspace_that_never_had_the_former_passages(tmp_path):
    docs, before, after = (tmp_path / name for name in ("docs", "before", "after"))
    docs.mkdir()
    (docs / "a.md").write_text(MD)
    (docs / "b.rst").write_text(RST)
    qw.ChromaRetriever.build("mine", docs, home=before)
    asked = [{"id": word, "question": f"What does {word} turn into?"} for word in ("soil2", "sink6")]
    given = {"retriever": "mine", "judge": None, "depth": 1, "tell": [].append}
    table = qw.label(["plain"], asked, home=before, **given).to_pandas()
    soil, sink = table["passage_id"]
    table["label"], table["note"] = "ENTAILED", "checked"
    (docs / "a.md").write_text(MD.replace("The soil soil0", "Soil"))
    (docs / "b.rst").write_text(RST.partition("Sinks")[0])
    qw.ChromaRetriever.build("mine", docs, home=after)
    splits = {part: [{**one, "id": f"{one['id']}{part}"} for one in asked] for part in ("train", "dev", "test")}
    copies = [
        {**row, "question_id": f"{row['question_id']}{part}"} for row in table.to_dict("records") for part in splits
    ]
    for run, questions, labels, options in (
        (qw.compare, asked, table, {"metrics": ["recall@5"]}),
        (qw.study, splits, copies, {"objectives": "recall@5", "trials": 1}),
    ):
        told: list[str] = []
        found = run(
            ["plain"], questions, labels=labels, retriever="mine", reader=None, home=after, tell=told.append, **options
        )
        assert f"labeled passages that moved or changed: 1 ({soil!r} is now " in told[0]
        lost = [
            line
            for line in told
            if f"labeled passages no longer exist, and no passage contains most of their text: {sink!r}" in line
        ]
        assert len(lost) == len(questions if run is qw.compare else copies) / 2
        arm = (found if run is qw.compare else found.compared).arms[0]
        assert arm.mean("recall@5").value == 0.5
    again = qw.label(["plain"], asked, labels=table, home=after, **given).to_pandas().to_dict("records")
    rows = {one["passage_id"]: one for one in again}
    (moved,) = (one for id, one in rows.items() if "soil2" in one["text"])
    assert moved["passage_id"] != soil
    assert (moved["label"], moved["by"], moved["note"]) == ("ENTAILED", "person", "checked")
    assert "Soil turns" in moved["text"]
    assert rows[sink]["label"] == "ENTAILED", "the row of a deleted passage stays"
    assert soil not in rows
    assert len(again) == 3, "the passage found for the question about the deleted passage is added"


def test_labels_of_one_collection_apply_to_another_with_longer_passages(tmp_path):
    docs, home = tmp_path / "docs", tmp_path / "home"
    docs.mkdir()
    (docs / "a.md").write_text(MD)
    (docs / "b.rst").write_text(RST)
    small = qw.ChromaRetriever.build("small", read_documents(docs, chunk_size=40, chunk_overlap=0).passages, home=home)
    large = qw.ChromaRetriever.build("large", read_documents(docs, chunk_size=300, chunk_overlap=0).passages, home=home)
    words = ["soil2", "rose3", "oven7", "sink6"]
    ids = {word: next(one.id for one in small.passages() if f"into {word}" in one.text) for word in words}
    assert sum(id not in large for id in ids.values()) >= 3
    splits = {
        part: [
            {"id": f"{word}{part}", "question": f"What turns into {word}?", "evidence": [id]}
            for word, id in ids.items()
        ]
        for part in ("train", "dev", "test")
    }
    given = {"reader": None, "trials": 6, "objectives": "decision_useful", "home": home, "max_passages": 20}
    arms = {"plain": {"engines": ["small", "large"]}}
    named = {"small": "small", "large": "large@hybrid"}
    for retriever in ({"small": small, "large": large}, named):
        told: list[str] = []
        found = qw.study(arms, splits, retriever=retriever, tell=told.append, **given)
        assert {(one.arm.engine, one.values["decision_useful"]) for one in found.snapshot.trials} == {
            ("small", 1),
            ("large", 1),
        }
        assert not any("not in the collection" in line or "no longer exist" in line for line in told)
        assert {one.name for one in found.compared.arms} == {"baseline", "plain@large compiled"}
    trial = next(one for one in found.snapshot.trials if one.arm.engine == "large")
    assert opened(found.program(trial).technique.retriever)["engine"] == "hybrid"
    with pytest.raises(InputError, match=r"retrievers.large: unknown engine 'hybird' \(did you mean hybrid\?\)"):
        qw.study(arms, splits, retriever=named | {"large": "large@hybird"}, **given)
    with pytest.raises(InputError, match="the collection name 'small@hybrid' is not valid"):
        qw.study(["plain"], splits, retriever="small@hybrid", **given)
    with pytest.raises(InputError, match="name a collection with its engine, NAME: COLLECTION@ENGINE"):
        qw.study({"plain": {"engines": ["large@hybrid"]}}, splits, retriever=named, **given)
    with pytest.raises(InputError, match=r"techniques.hyde.engines: got 'large', but the engine must be dense or"):
        qw.study(["hyde"], splits, retriever=named, **given)
    programs = {name: make_program("plain", one, reader=None) for name, one in (("small", small), ("large", large))}
    told = []
    for ordered in (programs, dict(reversed(programs.items()))):
        found = qw.compare(ordered, splits["test"], reader=None, metrics=["recall@20"], home=home, tell=told.append)
        assert [one.average("recall@20") for one in found.arms] == [1.0, 1.0]
    assert not any("collection" in line for line in told)
    (docs / "b.rst").write_text(RST.partition("Sinks")[0])
    less = qw.ChromaRetriever.build("less", read_documents(docs, chunk_size=300, chunk_overlap=0).passages, home=home)
    told = []
    qw.study(arms, splits, retriever={"small": small, "large": less}, tell=told.append, **given)
    assert [
        line
        for line in told
        if line.startswith("warning: retriever 'large': for 3 of 12 questions, no helpful passage")
    ]
    assert not any("retriever 'small'" in line for line in told)


def test_the_labels_of_the_questions_are_in_the_label_table_even_if_no_arm_found_their_passages(edited):
    _, home, soil, sink = edited
    questions = [{"id": "q", "question": "What does kettle1 turn into?", "evidence": [soil, sink]}]
    given = {"retriever": "mine", "judge": None, "depth": 1, "home": home, "tell": [].append}
    made = qw.label(["plain"], questions, **given)
    rows = {word: row for word in ("kettle1", "soil2", "sink6") for row in made.to_pandas().to_dict("records")
            if word in row["text"]}  # fmt: skip
    assert len(rows) == len(made.labels) == made.added == 3
    assert {word: (row["by"], row["label"] == "ENTAILED") for word, row in rows.items()} == {
        "kettle1": ("", False), "soil2": ("person", True), "sink6": ("person", True),
    }  # fmt: skip
    assert rows["soil2"]["passage_id"] != soil
    assert rows["sink6"]["passage_id"] == sink, "the label of a deleted passage stays, so that runs report it"


def test_labels_for_dspy_alone_follow_edits(edited):
    asked, home, soil, sink = edited
    retriever = qw.ChromaRetriever("mine", home=home)
    with pytest.warns(UserWarning, match="labeled passages") as told:
        moved, lost = current_labels(qw.read_questions(asked), retriever)
    (now,) = moved.evidence
    assert soil not in retriever
    assert "soil2" in retriever.get([now])[0].text
    assert lost.evidence == {sink: Label.ENTAILED}
    said = [str(one.message) for one in told]
    assert any("labeled passages that moved or changed: 1" in line for line in said)
    assert any(f"no passage contains most of their text: {sink!r}" in line for line in said)


@pytest.mark.parametrize("labels_in", ["questions", "file"])
def test_the_parts_of_a_split_passage_are_not_written_as_labeled_by_a_person(tmp_path, labels_in):
    docs, home, out = tmp_path / "docs", tmp_path / "home", tmp_path / "labels.jsonl"
    docs.mkdir()
    text, rest, more = (prose(word) for word in ("rose", "thorn", "tulip"))
    (docs / "a.md").write_text(f"# Rose\n\n{text}\n\n{rest}\n")
    (whole,) = qw.ChromaRetriever.build("mine", docs, home=home).passages()
    question = {"id": "q", "question": "What does rose2 turn into?"}
    given = {"retriever": "mine", "home": home}
    labeled = question | {"evidence": [whole.id]}
    if labels_in == "file":
        write_labels(out, qw.label(["plain"], [labeled], judge=None, **given).labels)
    (docs / "a.md").write_text(f"# Rose\n\n{text}\n\n{more} {prose('fern')}\n\n{prose('moss', 8)} again.\n\n{rest}\n")
    qw.ChromaRetriever.build("mine", docs, home=home)
    reading = {"labels": out} if labels_in == "file" else {}
    asked = [question if labels_in == "file" else labeled]
    again = qw.label(["plain"], asked, judge=None, reading=reading, labels=reading.get("labels"), tell=str, **given)
    assert {one.passage_id: one.label for one in again.labels if one.label is not None} == {whole.id: "ENTAILED"}
    assert len(again.labels) > 2
    write_labels(out, again.labels)
    told: list[str] = []
    found = qw.compare(["plain"], [question], labels=out, reader=None, metrics=["recall"], tell=told.append, **given)
    assert found.arms[0].mean("recall").value == 1
    assert any(f"the text of the labeled passage {whole.id!r} is now in 2 passages" in line for line in told)


def test_labels_before_pooling_come_from_the_file_and_the_questions_and_cover_all_collections():
    text, rest, more = prose("rose", 6), prose("thorn", 6), prose("fern", 6)
    former = {"a.md#rose-0": Passage("a.md#rose-0", f"{text} {rest}"), "b.md#fern-1": Passage("b.md#fern-1", more)}
    first = {one: Passage(one, said) for one, said in (("a.md#rose-2", text), ("a.md#thorn-3", rest))}
    first |= {"c.md#fern-4": Passage("c.md#fern-4", f"New. {more}"), "c.md#moss-5": Passage("c.md#moss-5", "moss")}
    second = {"all.md#fern-6": Passage("all.md#fern-6", f"{more} {prose('tulip', 6)}")}
    evidence = {"a.md#rose-0": Label.ENTAILED, "b.md#fern-1": Label.USEFUL, "c.md#moss-5": Label.USEFUL}
    question = Question("q", "?", evidence=evidence)
    row = partial(PassageLabel, question="?", question_id="q", passage_id="c.md#moss-5", further={"note": "n"})
    for there in (row(), row(label=Label.NOT_USEFUL, judged=Label.NOT_USEFUL, by=JUDGED)):
        other = replace(there, question_id="other")
        rows, labeled = earlier_labels([there, other], [question], [second, first], former, print)
        found = {one.key: (one.label, one.by, one.further) for one in rows}
        assert found == {
            ("q", "a.md#rose-0"): ("ENTAILED", "person", {}),
            ("q", "a.md#rose-2"): (None, "", {}),
            ("q", "a.md#thorn-3"): (None, "", {}),
            ("q", "c.md#fern-4"): ("USEFUL", "person", {}),
            ("q", "c.md#moss-5"): ("USEFUL", "person", {"note": "n"}),
            other.key: (other.label, other.by, {"note": "n"}),
        }
        assert labeled == {("q", id) for id in (*first, *second)}
    rows, _ = earlier_labels([row(label=Label.NOT_USEFUL, by="person")], [question], [second, first], former, print)
    assert {one.passage_id: one.label for one in rows}["c.md#moss-5"] == "NOT_USEFUL", "the file precedes the question"


def test_every_moved_label_is_in_the_notes_and_the_report_but_a_warning_names_three(tmp_path):
    docs, home = tmp_path / "docs", tmp_path / "home"
    docs.mkdir()
    words = ["rose", "thorn", "tulip", "fern", "moss"]
    pages = {word: docs / f"{word}.md" for word in words}
    for word, page in pages.items():
        page.write_text(f"# {word}\n\n{prose(word, 6)}\n")
    first = qw.ChromaRetriever.build("mine", docs, home=home)
    ids = {word: next(one.id for one in first.passages() if f"{word}2" in one.text) for word in words}
    asked = [{"question": f"What of {word}?", "evidence": [id]} for word, id in ids.items()]
    for word, page in pages.items():
        page.write_text(f"# {word}\n\nNew. {prose(word, 6)}\n")
    qw.ChromaRetriever.build("mine", docs, home=home)
    with pytest.warns(UserWarning, match="labeled passage") as told:
        found = qw.compare(["plain"], asked, retriever="mine", reader=None, metrics=["recall"], home=home)
    (moved,) = (str(one.message) for one in told if "moved or changed" in str(one.message))
    assert "changed: 5 (" in moved
    assert "and 2 more, listed in the report, --json, and all_notes" in moved
    assert sum(repr(id) in moved for id in ids.values()) == 3
    listed = " ".join(found.all_notes)
    assert all(f"{id!r} is now " in listed for id in ids.values())
    page = html.unescape(found.report(tmp_path / "report.html").read_text())
    assert all(f"{id!r} is now " in page for id in ids.values())


def test_a_python_warning_does_not_say_warning_twice(edited):
    asked, home, _, sink = edited
    with pytest.warns(UserWarning, match="labeled passage") as told:
        found = qw.compare(["plain"], asked, retriever="mine", reader=None, metrics=["recall"], home=home)
    (lost,) = (line for line in found.hints if f"contains most of their text: {sink!r} (" in line)
    assert lost.startswith("warning: question 'r'")
    assert lost.removeprefix("warning: ") in [str(one.message) for one in told]

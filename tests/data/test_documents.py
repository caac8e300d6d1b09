"""Documents as passages: formats, chunks, titles, ids, and the files that cannot be read."""

from __future__ import annotations

import io
import json
import re
import sys
import zipfile

import pytest

import querywright as qw
from querywright.cli.main import run
from querywright.data.documents import names_documents, read_documents
from querywright.errors import DataError, InputError

pypdf = pytest.importorskip("pypdf")
for name in ("bs4", "markdownify", "semantic_text_splitter"):
    pytest.importorskip(name)

WORDS = " ".join(f"Sentence {n} says what it says." for n in range(60))


def pdf(*pages, outline=(), password=None, title=None):
    """A PDF with a text a page, None for one that has none."""
    from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

    writer = pypdf.PdfWriter()
    font = DictionaryObject({NameObject("/Type"): NameObject("/Font"), NameObject("/Subtype"): NameObject("/Type1"),
                             NameObject("/BaseFont"): NameObject("/Helvetica")})  # fmt: skip
    for text in pages:
        page = writer.add_blank_page(600, 800)
        if text is not None:
            page[NameObject("/Resources")] = DictionaryObject(
                {NameObject("/Font"): DictionaryObject({NameObject("/F1"): font})}
            )
            stream = DecodedStreamObject()
            lines = "".join(f"({line}) Tj 0 -14 Td " for line in text.split("\n"))
            stream.set_data(f"BT /F1 12 Tf 72 720 Td {lines}ET".encode("latin-1"))
            page[NameObject("/Contents")] = writer._add_object(stream)
    for page, text in outline:
        writer.add_outline_item(title=text, page_number=page)
    if title:
        writer.add_metadata({"/Title": title})
    if password is not None:
        writer.encrypt(user_password=password, owner_password="boss", algorithm="AES-256")
    held = io.BytesIO()
    writer.write(held)
    return held.getvalue()


@pytest.fixture
def folder(tmp_path):
    def make(**files):
        for name, content in files.items():
            path = tmp_path / "docs" / name.replace("__", "/").replace("_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return tmp_path / "docs"

    return make


def test_a_passage_has_its_headings_as_the_title_and_the_text_as_it_is(folder):
    text = (
        f"---\ntitle: Guide\n---\n# Garden\n\n## Roses\n\n{WORDS}\n\n```sh\n# no heading\n```\n\n## Tulips\n\n{WORDS}\n"
    )
    passages = read_documents(folder(guide__garden_md=text), chunk_size=40, chunk_overlap=8).passages
    assert {one.title for one in passages} == {"Garden > Roses", "Garden > Tulips"}
    for one in passages:
        assert one.text in text
        assert (one.id.rpartition("-")[0].rpartition("#")[0], one.metadata) == (
            "docs/guide/garden.md", {"file": "docs/guide/garden.md"},
        )  # fmt: skip
        assert len(one.text.split()) <= 40
    roses = [one.text for one in passages if one.title == "Garden > Roses"]
    sentences = [one.split(".")[0] for one in roses[:-1]]
    assert all(first in before for before, first in zip(roses, sentences[1:], strict=False)), "they overlap"
    assert len(sentences) > 5
    assert len({one.id for one in passages}) == len(passages)
    whole = read_documents(folder(a_md="# A\n\nOne.\n\n## B\n\nTwo.\n\n## C\n\nThree.\n") / "a.md").passages
    assert [one.title for one in whole] == ["A"], "a section that fits is whole"


def test_a_web_page_loses_its_menus_and_keeps_its_headings(folder):
    page = (
        "<html><head><title>Shop</title><style>p{}</style></head><body><nav>Home | About</nav><main><h2>Hours</h2>"
        "<p>Open_late <a href='/x'>on Friday</a>.</p></main><footer>Imprint</footer></body></html>"
    )
    (passage,) = read_documents(folder(index_html=page)).passages
    assert passage.title == "Shop > Hours"
    assert passage.text == "## Hours\n\nOpen_late on Friday."


def test_a_pdf_says_the_page_and_what_its_outline_calls_it(folder):
    pages = (
        "This is how the shop works and what it has to sell.",
        "Hours\nThe shop is open on Fri-\nday and also\non Monday.",
        f"Prices\n{WORDS[:300]}",
    )
    docs = folder(shop_pdf=pdf(*pages, outline=[(1, "Hours"), (2, "Prices")], title="Shop"))
    found = read_documents(docs, chunk_size=12, chunk_overlap=0).passages
    hours = next(one for one in found if "open" in one.text)
    assert (hours.title, hours.metadata["page"]) == ("Shop > Hours", 2)
    assert "open on Friday and also on Monday." in hours.text, "lines and words that were broken are whole"
    assert {one.metadata["page"] for one in found if one.title == "Shop > Prices"} == {3}
    (opened,) = read_documents(folder(owner_pdf=pdf("Free to read.", password="")) / "owner.pdf").passages
    assert opened.text == "Free to read."


def test_what_is_lost_is_told_and_ends_nothing(folder, caplog):
    docs = folder(
        good_txt="Fine.", empty_txt=" \n", noise_txt=bytes(range(256)), scan_pdf=pdf(None),
        locked_pdf=pdf("a", password="x"), cut_pdf=pdf("a")[:200],
        half_pdf=pdf("Typed.", None), old_txt="Gewähr für Stühle.".encode("latin-1"),
        letter_xyz=b"PK", a_png=b"", b_png=b"",
    )  # fmt: skip
    found = read_documents(docs)
    assert sorted(one.text for one in found.passages if "w" not in one.text) == ["Fine.", "Typed."]
    told = "\n".join(found.lost)
    for line in (
        "empty: docs/empty.txt", "no text on 1 of 2 pages (probably scans): docs/half.pdf",
        "(ocrmypdf): docs/scan.pdf",
        "(qpdf --decrypt): docs/locked.pdf", "save the file as UTF-8: docs/noise.txt", "damaged (",
        "with a guessed encoding (windows-1250): docs/old.txt",
        "2 .png, 1 .xyz",
    ):  # fmt: skip
        assert line in told
    assert len(found.files) == 3
    assert told == "\n".join(record.getMessage() for record in caplog.records)
    with pytest.raises(DataError, match=r"(?s)found no readable text \(files: 1\).*empty: docs/empty.txt"):
        read_documents(docs / "empty.txt")


def test_the_first_line_of_plain_text_is_its_title_where_it_stands_alone(folder):
    docs = folder(
        a_txt="\nOpening hours\n\nMondays.", b_txt="Hours\r\n=====\r\nAll.", c_txt="We open.\n\nYes.", d_txt="A\nB"
    )
    assert [one.title for one in read_documents(docs).passages] == ["Opening hours", "Hours", "c", "d"]


RST = """
=======
Signals
=======

.. module:: signals

Sending
=======

:meth:`Signal.send` needs a *sender*.

.. code-block:: python

    def receive(sender):

        return 1

``receive``
-----------

It returns 1.

+-----+-----+
| a   | b   |
+-----+-----+
"""
NOTEBOOK = {
    "cells": [
        {"cell_type": "markdown", "source": ["# Sums\n", "\n", "Add."]},
        {"cell_type": "code", "source": "1 + 1\n\n2 + 2", "outputs": [{"text": "4"}]},
    ],
    "metadata": {"kernelspec": {"language": "python"}},
}


def test_a_folder_with_a_mixture_is_listed_with_what_was_made_of_each_file(folder):
    pytest.importorskip("mammoth")
    docs = folder(
        a_rst=RST, b_txt=RST, c_txt="No markup.\n-----\n\nIt only looks so.", d_ipynb=json.dumps(NOTEBOOK),
        e_docx=docx("Manual", "Clean it weekly."), old_ipynb="{}",
    )  # fmt: skip
    found = read_documents(docs, chunk_size=50)
    assert [(one.name, one.format, one.title) for one in found.files] == [
        ("docs/a.rst", "reStructuredText", "Signals"), ("docs/b.txt", "reStructuredText", "Signals"),
        ("docs/c.txt", "text", "c"), ("docs/d.ipynb", "notebook", "Sums"), ("docs/e.docx", "Word", "Manual"),
    ]  # fmt: skip
    assert [one.title for one in found.passages if one.metadata["file"] == "docs/a.rst"] == [
        "Signals", "Signals > Sending", "Signals > Sending > receive",
    ]  # fmt: skip
    assert all(one.text in RST for one in found.passages if one.metadata["file"] in ("docs/a.rst", "docs/b.txt"))
    smaller = read_documents(docs / "a.rst", chunk_size=30, chunk_overlap=0).passages
    assert smaller[2].text == ".. code-block:: python\n\n    def receive(sender):\n\n        return 1"
    by_file = {one.metadata["file"]: one.text for one in found.passages}
    assert by_file["docs/d.ipynb"] == "# Sums\n\nAdd.\n\n```python\n1 + 1\n\n2 + 2\n```"
    assert by_file["docs/e.docx"] == "# Manual\n\nClean it weekly."
    assert "old notebook format" in found.lost[0]


def docx(title, text):
    """Return a document of Word with a heading and a paragraph."""
    held = io.BytesIO()
    w = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    body = (
        f'<w:p><w:pPr><w:pStyle w:val="Heading1"/></w:pPr><w:r><w:t>{title}</w:t></w:r></w:p>'
        f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>"
    )
    style = '<w:style w:type="paragraph" w:styleId="Heading1"><w:name w:val="heading 1"/></w:style>'
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = "http://schemas.openxmlformats.org/package/2006"
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{package}/content-types"/>',
        "_rels/.rels": f'<Relationships xmlns="{package}/relationships"><Relationship Id="1" '
        f'Type="{office}/officeDocument" Target="word/document.xml"/></Relationships>',
        "word/_rels/document.xml.rels": f'<Relationships xmlns="{package}/relationships"><Relationship Id="1" '
        f'Type="{office}/styles" Target="styles.xml"/></Relationships>',
        "word/styles.xml": f"<w:styles {w}>{style}</w:styles>",
        "word/document.xml": f"<w:document {w}><w:body>{body}</w:body></w:document>",
    }
    with zipfile.ZipFile(held, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return held.getvalue()


def test_a_chunk_does_not_cut_code_and_tables_and_has_no_more_tokens_than_prose(folder):
    code = "\n\n".join(f"    total_{n} = compute(items[{n}], key={n!r})  # {{'a': {n}}}" for n in range(4))
    table = "| a | b |\n|---|---|\n" + "".join(f"| row {n} | {n}.{n} |\n" for n in range(6))
    fenced = f"```python\ndef f():\n{code}\n```"
    text = f"# A\n\n{WORDS}\n\n## Code\n\nFor example:\n\n{fenced}\n\n{WORDS}\n\n{table}\n"
    found = [one.text for one in read_documents(folder(a_md=text)).passages]
    assert any(fenced in one for one in found)
    assert any(table.strip() in one for one in found)
    assert all(one.strip() != "## Code" for one in found), "a heading is in front of what follows it"
    long = "\n".join(f"value_{n}['key'] = {{{n}: [{n}.5, {n}e3]}}" for n in range(300))
    tokens = [
        len(re.findall(r"[A-Za-z]+|\d|[^\w\s]|_", one.text))
        for one in read_documents(folder(b_md=f"```\n{long}\n```") / "b.md").passages
    ]
    assert max(tokens) <= 200


GRID = "\n".join(
    "+" + "".join("-" * 24 + "+" for _ in range(3)) + f"\n| timeout {n} | 60 | Seconds until it stops |"
    for n in range(4)
)
SIMPLE = "=======  =====\nName     Value\n=======  =====\ntimeout  60\n\nretries  4\n\nwait     1\n=======  ====="


def test_link_targets_are_no_passage_and_a_directive_stays_with_its_content(folder):
    code = "\n\n".join(f"    alpha{n} = beta + gamma({n})" for n in range(30))
    words = "One two three four five six seven eight nine ten eleven twelve. " * 3
    heads = "Title\n=====", "More\n----"
    parts = [".. _top:", heads[0], words, ".. _part:", ".. code-block:: python", code, ".. _last:", heads[1], words]
    rst = "\n\n".join(parts)
    md = f'# Title\n\n{words}\n\n[site]: https://site.example/path "Site"\n[other]: <#top>\n'
    found = read_documents(folder(a_rst=rst, b_md=md), chunk_size=36, chunk_overlap=0).passages
    texts = [one.text for one in found]
    assert not any(text.strip().startswith((".. _", "[site]")) and len(text) < 99 for text in texts)
    (first,) = (text for text in texts if "code-block" in text)
    assert "alpha0" in first
    assert sum(text.count("= beta + gamma(") for text in texts) == 30
    note = f"# T\n\n{words}\n\n[^1]: A footnote is text.\n"
    notes = read_documents(folder(c_md=note), chunk_size=36, chunk_overlap=0).passages
    assert any("A footnote is text." in one.text for one in notes)


INDENTED = "\n\n".join(f"    def compute_{n}(items):\n\n        return {{'total': items[{n}]}}" for n in range(3))
FENCED = "\n\n".join(["    ```", "    one", *(f"    two({n})" for n in range(9)), "    ```"])
OWN = {
    "paragraph.rst": (f"{WORDS[:350]}::\n\n{INDENTED}\n\n{WORDS[:350]}", INDENTED),
    "note.rst": (f".. note::\n   :class: x\n\n    {WORDS[:350]}\n\n    So::\n\n{INDENTED}", INDENTED),
    "item.md": (f"- {WORDS[:350]}\n\n{FENCED}\n\n    {WORDS[:350]}\n\n- {WORDS[:350]}", FENCED),
    "rule.md": (f"{WORDS[:350]}\n\n{'-' * 80}\n\n{FENCED}\n\n{WORDS[:350]}", FENCED),
    "paragraph.md": (f"{WORDS[:350]}\n\n{INDENTED}\n\n{WORDS[:350]}", INDENTED),
}


@pytest.mark.parametrize("suffix", ["md", "rst"])
@pytest.mark.parametrize("before", ["", "# T\n\n", "1. Outer\n   "])
def test_list_items_without_blank_lines_are_not_split(folder, suffix, before):
    indent = " " * 3 * before.startswith("1")
    items = [f"{indent}- item{n} {WORDS[:90]}\n{indent}  more{n} of it {WORDS[:60]}\n" for n in range(14)]
    made = read_documents(folder(**{f"a_{suffix}": f"{before}\n{''.join(items)}"})).passages
    assert len(made) > 1
    assert all(any(item.strip() in one.text for one in made) for item in items)
    small = f"{WORDS[:600]}\n\n{''.join(items[:3])}"
    assert any("".join(items[:3]).strip() in one.text for one in read_documents(folder(b_md=small) / "b.md").passages)


@pytest.mark.parametrize("name", OWN)
def test_code_below_a_long_paragraph_or_item_is_not_split(folder, name):
    text, code = OWN[name]
    made = read_documents(folder(**{name.replace(".", "_"): text}), chunk_size=90).passages
    assert len(made) > 1
    assert any(code.strip() in one.text for one in made), [one.text for one in made]
    assert made[0].text.startswith(text[:30])
    assert all(one.text.strip() != ".. note::" for one in made)


def test_deep_indentation_and_a_long_directive_are_split(folder):
    deep = "\n\n".join(" " * n + f"level{n} says what it says" for n in range(500))
    made = read_documents(folder(a_md=deep, b_rst=f".. note:: {WORDS} {WORDS}"), chunk_overlap=0).passages
    found = [word for one in made for word in one.text.split() if word.startswith("level")]
    assert found == [f"level{n}" for n in range(500)]
    assert max(len(one.text.split()) for one in made) <= 150


@pytest.mark.parametrize("table", [GRID, SIMPLE])
@pytest.mark.parametrize("count", range(6, 14))
def test_a_small_rst_table_is_not_split(folder, table, count):
    text = f"Title\n=====\n\n{' '.join(['word'] * 10 * count)}\n\n{table}\n\n{WORDS}\n\n{WORDS}\n"
    assert any(table in one.text for one in read_documents(folder(a_rst=text)).passages)


def test_which_sources_are_documents(folder, tmp_path):
    docs = folder(a_md="A.", sub__b_txt="B.", README_md="R.")
    assert all(map(names_documents, (docs, str(docs), docs / "a.md", [docs / "a.md"])))
    assert [one.id for one in read_documents(list(docs.rglob("*.txt"))).passages] == ["sub/b.txt#b-be651d5a"]
    assert not any(map(names_documents, ("sample", "hf:x/y", "rows.jsonl", [{"text": "a"}], 3)))
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "README.md").write_text("card")
    assert names_documents(tmp_path / "rows")
    (tmp_path / "rows" / "train.csv").write_text("id,text\n")
    assert not names_documents(tmp_path / "rows"), "a dataset with its card"
    (docs / "corpus.jsonl").write_text('{"id": "1", "text": "a"}')
    assert not names_documents(docs), "passages as rows"
    with pytest.raises(DataError, match="no such file"):
        read_documents(tmp_path / "none.md")
    (tmp_path / "other" / "docs").mkdir(parents=True)
    (tmp_path / "other" / "docs" / "a.md").write_text("Another.")
    with pytest.raises(DataError, match=r"would both be named docs/a\.md"):
        read_documents([docs, tmp_path / "other" / "docs"])
    with pytest.raises(DataError, match="neither columns nor splits"):
        qw.read_passages(docs / "a.md", columns={"text": "body"})
    with pytest.raises(InputError, match="chunk_overlap"):
        read_documents(docs, chunk_size=5, chunk_overlap=5)


def test_without_the_extra_the_error_says_how_to_get_it(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "semantic_text_splitter", None)
    with pytest.raises(InputError, match=r"pip install 'querywright\[documents\]'"):
        qw.read_passages(folder(a_md="A."))


def test_the_command_takes_sizes_and_says_what_was_lost(folder, tmp_path, capsys):
    docs, home = str(folder(a_md=f"# A\n\n{WORDS}", empty_txt="")), ("--home", str(tmp_path / "home"))
    assert run(["index", "mine", docs, f"{docs}/a.md", "--chunk-size", "50", "--json", *home]) == 0
    first = json.loads(capsys.readouterr().out)
    (file,) = first["files"]
    assert (file["name"], file["format"], file["title"]) == ("docs/a.md", "Markdown", "A")
    assert first["lost"] == ["not read: empty: docs/empty.txt"]
    assert run(["index", "mine", docs, "--chunk-size", "50", "--json", *home]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["count"], again["rebuilt"]) == (first["count"], False)
    assert (
        run(["index", "mine", docs, "--column", "text=body", *home])
        == run(["index", "mine", "sample", "--chunk-size", "50", *home])
        == 2
    )
    assert "--chunk-size and --chunk-overlap apply only to documents" in capsys.readouterr().err


def test_a_changed_file_replaces_its_passages_and_the_others_stay(folder, tmp_path, caplog, capsys):
    docs = folder(a_md=f"# A\n\n{WORDS}", b_md="# B\n\nSecond.", half_pdf=pdf("Typed.", None))
    home = tmp_path / "home"
    qw.ChromaRetriever.build("mine", docs, home=home)
    (docs / "a.md").write_text("Now it is short.")
    again = qw.ChromaRetriever.build("mine", docs / "a.md", home=home)
    assert again.count == 3
    assert "(2 from docs/b.md, docs/half.pdf); prune=True removes them" in caplog.text
    assert run(["index", "mine", str(docs / "a.md"), "--home", str(home)]) == 0
    assert "kept from earlier sources: 2 from docs/b.md, docs/half.pdf (to" in " ".join(capsys.readouterr().err.split())
    assert {hit.passage.text for hit in again.search(["short"], 5)[0]} == {
        "Now it is short.",
        "# B\n\nSecond.",
        "Typed.",
    }

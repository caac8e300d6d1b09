"""Documents as passages: what is read, where it stood, what is lost and told, and what is not read again."""

from __future__ import annotations

import io
import json
import sys
from itertools import pairwise

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


def test_a_passage_says_its_headings_and_the_characters_it_stands_at(folder):
    text = (
        f"---\ntitle: Guide\n---\n# Garden\n\n## Roses\n\n{WORDS}\n\n```sh\n# no heading\n```\n\n## Tulips\n\n{WORDS}\n"
    )
    docs = folder(guide__garden_md=text)
    passages = read_documents(docs, chunk_size=40, chunk_overlap=8).passages
    assert {one.title for one in passages} == {"Garden > Roses", "Garden > Tulips"}
    for one in passages:
        assert text[one.metadata["start"] : one.metadata["end"]] == one.text
        assert (one.id, one.metadata["file"]) == (
            f"docs/guide/garden.md#{one.metadata['start']}",
            "docs/guide/garden.md",
        )
        assert len(one.text.split()) <= 40
    starts = [(one.metadata["start"], one.metadata["end"]) for one in passages if one.title == "Garden > Roses"]
    assert all(before[1] > after[0] for before, after in pairwise(starts)), "they overlap"
    whole = read_documents(folder(a_md="# A\n\nOne.\n\n## B\n\nTwo.\n\n## C\n\nThree.\n") / "a.md").passages
    assert [one.title for one in whole] == ["A"], "of several headings what they share"


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
        letter_docx=b"PK", a_png=b"", b_png=b"",
    )  # fmt: skip
    found = read_documents(docs)
    assert sorted(one.text for one in found.passages if "w" not in one.text) == ["Fine.", "Typed."]
    told = "\n".join(found.lost)
    for line in (
        "empty: docs/empty.txt", "1 of 2 pages without text, such as scans: docs/half.pdf",
        "(ocrmypdf): docs/scan.pdf",
        "(qpdf --decrypt): docs/locked.pdf", "save it as UTF-8: docs/noise.txt", "damaged (",
        "by a guess: docs/old.txt",
        "2 .png, 1 .docx",
    ):  # fmt: skip
        assert line in told
    assert found.files == 3
    assert told == "\n".join(record.getMessage() for record in caplog.records)
    with pytest.raises(DataError, match=r"(?s)no text could be read from 1 files.*empty: docs/empty.txt"):
        read_documents(docs / "empty.txt")


def test_the_first_line_of_plain_text_is_its_title_where_it_stands_alone(folder):
    docs = folder(
        a_txt="\nOpening hours\n\nMondays.", b_txt="Hours\r\n=====\r\nAll.", c_txt="We open.\n\nYes.", d_txt="A\nB"
    )
    assert [one.title for one in read_documents(docs).passages] == ["Opening hours", "Hours", "c", "d"]


def test_which_sources_are_documents(folder, tmp_path):
    docs = folder(a_md="A.", sub__b_txt="B.", README_md="R.")
    assert all(map(names_documents, (docs, str(docs), docs / "a.md", [docs / "a.md"])))
    assert [one.id for one in read_documents(list(docs.rglob("*.txt"))).passages] == ["sub/b.txt#0"]
    assert not any(map(names_documents, ("sample", "hf:x/y", "rows.jsonl", "rows.jsonl?page=url", [{"text": "a"}], 3)))
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
    with pytest.raises(DataError, match=r"would both be called docs/a\.md"):
        read_documents([docs, tmp_path / "other" / "docs"])
    with pytest.raises(DataError, match="no columns"):
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
    assert (first["files"], first["unchanged"], first["lost"]) == (1, 0, ["not read: empty: docs/empty.txt"])
    assert run(["index", "mine", docs, "--chunk-size", "50", "--json", *home]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["count"], again["unchanged"], again["rebuilt"]) == (first["count"], 1, False)
    assert (
        run(["index", "mine", docs, "--column", "text=body", *home])
        == run(["index", "mine", "sample", "--chunk-size", "50", *home])
        == 2
    )
    assert "--chunk-size and --chunk-overlap are for documents" in capsys.readouterr().err


def test_a_changed_file_replaces_its_passages_and_the_rest_is_not_read_again(folder, tmp_path, monkeypatch):
    docs = folder(a_md=f"# A\n\n{WORDS}", b_md="# B\n\nSecond.", half_pdf=pdf("Typed.", None))
    home = tmp_path / "home"
    first = qw.ChromaRetriever.build("mine", docs, home=home)
    read = []
    kept = qw.data.documents._markdown
    monkeypatch.setitem(qw.data.documents.READERS, ".md", lambda data: read.append(data) or kept(data))
    qw.ChromaRetriever.build("mine", str(docs), home=home)
    assert read == []
    (docs / "a.md").write_text("Now it is short.")
    again = qw.ChromaRetriever.build("mine", docs, home=home)
    assert read == [b"Now it is short."]
    assert (first.count, again.count) == (first.count, 3)
    assert {hit.passage.text for hit in again.search(["short"], 5)[0]} == {
        "Now it is short.",
        "# B\n\nSecond.",
        "Typed.",
    }

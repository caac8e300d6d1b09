from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from querywright.data.types import Passage
from querywright.errors import CollectionError, InputError
from querywright.models.embedder import Embedder, Vectors
from querywright.models.store import open_store
from querywright.retrieval.bm25 import BM25Retriever, ExpandedRetriever
from querywright.retrieval.callable import CallableRetriever, as_retriever
from querywright.retrieval.chroma import ChromaRetriever
from querywright.retrieval.engines import ENGINES, LEXICAL, Opened, check_engine, open_retriever, opened
from querywright.retrieval.generated_questions import COMPLETE, PassageRecord, WrittenQuestion, publish_questions
from querywright.retrieval.hybrid import HybridRetriever
from querywright.retrieval.index import build_collection
from querywright.retrieval.question_index import QuestionIndex
from querywright.retrieval.types import VectorRetriever, kind_of

PASSAGES = [
    Passage("north", "north wind"),
    Passage("south", "south wind", "", {"warm": True}),
    Passage("sun", "south sun", "", {"warm": True}),
]


class CompassModel:
    """North and south are opposite; nothing else counts."""

    def encode(self, texts: Sequence[str], **options: object) -> Vectors:
        rows = np.full((len(texts), 4), 0.1, dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            for place, word in enumerate(("north", "south", "sun")):
                row[place] += len(re.findall(word, text))
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _embedder(home: Path, id: str = "compass:4") -> Embedder:
    return Embedder(id, CompassModel, dimension=4, store=open_store(home))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("home")
    build_collection("weather", PASSAGES, embedder=_embedder(home), home=home)
    asked = {"north": "is north?", "south": "is south?", "sun": "is south sun?"}
    records = [PassageRecord(p.id, p.text_digest(), "s", (WrittenQuestion(asked[p.id], COMPLETE),)) for p in PASSAGES]
    publish_questions("weather", records, embedder=_embedder(home), home=home)
    yield home
    open_store(home).close()


def test_each_engine_opens_its_retriever(home: Path) -> None:
    embedder = _embedder(home)
    kinds = {
        "dense": ChromaRetriever, "bm25": BM25Retriever, "hybrid": HybridRetriever, "questions": QuestionIndex,
        "expanded": ExpandedRetriever,
    }  # fmt: skip
    assert set(kinds) == set(ENGINES)
    for engine, kind in kinds.items():
        retriever = open_retriever("weather", engine=engine, embedder=embedder, home=home)
        assert type(retriever) is kind
        assert retriever.search(["south sun"], 1)[0][0].passage.id == "sun"
        assert list(retriever.passages()) == PASSAGES
        assert retriever.get(["sun"]) == [PASSAGES[2]]
        assert retriever.count == 3
    assert isinstance(open_retriever("weather", embedder=embedder, home=home), ChromaRetriever)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_filter_holds_in_every_engine(home: Path, engine: str) -> None:
    retriever = open_retriever("weather", engine=engine, embedder=_embedder(home), home=home, where={"warm": True})
    ids = {hit.passage.id for hit in retriever.search(["north south sun wind"], 3)[0]}
    assert ids == {"south", "sun"}


@pytest.mark.parametrize("engine", ["", "BM25", "elastic"])
def test_an_engine_that_there_is_not(home: Path, engine: str) -> None:
    with pytest.raises(InputError, match=f"unknown engine '{engine}'; the engines are: {', '.join(ENGINES)}"):
        open_retriever("weather", engine=engine, embedder=_embedder(home), home=home)
    with pytest.raises(InputError, match="unknown engine"):
        check_engine(engine)


def test_only_lexical_engines_do_without_an_embedder(home: Path) -> None:
    for engine in LEXICAL:
        assert open_retriever("weather", engine=engine, embedder=None, home=home).count == 3
    for engine in ("dense", "hybrid", "questions"):
        with pytest.raises(InputError, match=f"the engine {engine} needs the embedder"):
            open_retriever("weather", engine=engine, home=home)


def test_another_embedder_is_refused_where_it_matters(home: Path) -> None:
    other = _embedder(home, "other:4")
    for engine in ("dense", "hybrid", "questions"):
        with pytest.raises(CollectionError, match="was built with the embedder 'compass:4'"):
            open_retriever("weather", engine=engine, embedder=other, home=home)
    for engine in LEXICAL:
        assert open_retriever("weather", engine=engine, embedder=other, home=home).count == 3


def test_what_is_needed_to_open_a_retriever_again(home: Path) -> None:
    embedder = _embedder(home)
    dense, lexical, hybrid, questions, expanded = (
        open_retriever("weather", engine=one, embedder=embedder, home=home) for one in ENGINES
    )
    assert opened(questions) == Opened("questions", "weather", "compass:4")
    assert opened(dense) == Opened("dense", "weather", "compass:4")
    assert opened(expanded) == Opened("expanded", "weather", None)
    assert opened(lexical) == Opened("bm25", "weather", None)
    assert opened(hybrid) == Opened("hybrid", "weather", "compass:4")
    for foreign in (
        as_retriever(lambda query, k: []),
        HybridRetriever([lexical, dense]),
        HybridRetriever([dense, lambda query, k: []]),
        HybridRetriever([dense, lexical, lexical]),
        HybridRetriever([questions, lexical]),
        None,
    ):
        assert opened(foreign) == Opened(None, None, None)


def test_kinds_and_vectors(home: Path) -> None:
    embedder = _embedder(home)
    found = [open_retriever("weather", engine=one, embedder=embedder, home=home) for one in ENGINES]
    own = CallableRetriever(lambda query, k: [])
    assert [kind_of(one) for one in (*found, own, object())] == [
        "dense", "lexical", "hybrid", "dense", "lexical", "foreign", "foreign",
    ]  # fmt: skip
    assert [isinstance(one, VectorRetriever) for one in (*found, own)] == [True, False, False, True, False, False]


def test_bm25_loads_neither_chroma_nor_a_model(home: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from querywright.retrieval.engines import open_retriever; "
        "open_retriever('weather', engine='bm25', home=Path(sys.argv[1])).search(['wind'], 2); "
        "print(sorted({'torch', 'sentence_transformers', 'chromadb', 'dspy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(home)], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")

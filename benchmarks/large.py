"""Measure scaling: time, memory, and disk space for collections, stored questions, comparisons, and studies by size.

Each step runs in a separate process and uses the public API. The memory of a step is its process's peak memory minus
the memory for the imports alone. Passages consist of randomly combined sentences from --data (``*/corpus.jsonl``),
about 450 characters per passage, and the queries are real questions from --data. The vectors are the embedded
embedder's vectors for a few thousand real sentences, each with its own random noise, because embedding a million texts
would take hours and show nothing about the other parts.

Usage: python benchmarks/large.py [--part passages ...] [--size 20000] [--data ../shared/data] [--home FOLDER] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from loopback import Loopback
from study import RETRIEVAL, TESTED, TRAIN
from study import Site as StudySite
from study import run as run_study

import querywright
from querywright.data.types import Label, Passage, Question
from querywright.models.embedder import Vectors, resolve_embedder
from querywright.optimize.study.engine import snapshot
from querywright.optimize.study.results import status, study_html
from querywright.retrieval.bm25 import BM25Retriever
from querywright.retrieval.chroma import ChromaRetriever
from querywright.retrieval.chroma_index import NEIGHBOURS, calls_and_sync, hnsw_of
from querywright.retrieval.generated_questions import COMPLETE, PassageRecord, WrittenQuestion, publish_questions
from querywright.retrieval.hybrid import HybridRetriever
from querywright.retrieval.index import build_collection
from querywright.retrieval.question_index import QuestionIndex

REAL = 4000
"""Number of sentences with real vectors."""
SPREAD = 0.6
"""Length of the noise that is added to a unit vector: two texts with the same real vector have a cosine of about 0.74.
"""
SENTENCES = 4
"""Number of sentences per passage."""
EACH = 8
"""Number of stored questions per passage."""
PASSAGES, DEV = 5000, 40
"""Number of passages in a comparison, and of dev questions in a study."""
QUERIES = 200
K = 10
MB = 2**20


class Texts:
    """Generates the same numbered passages, questions, and queries in every run.

    Args:
        data: A folder with ``*/corpus.jsonl`` and ``*/questions.jsonl``.
    """

    def __init__(self, data: Path) -> None:
        parts = (part for text in _column(data, "corpus", "text") for part in re.split(r"(?<=[.?!])\s+", text))
        self.sentences = sorted({part for part in parts if 60 <= len(part) <= 240})
        asked = sorted({one for one in _column(data, "questions", "question") if len(one) < 240})
        self.queries = random.Random(0).sample(asked, min(QUERIES, len(asked)))

    def passages(self, size: int) -> Iterator[Passage]:
        """Yield ``size`` passages."""
        for number in range(size):
            chosen = random.Random(number).choices(self.sentences, k=SENTENCES)
            yield Passage(f"passage-{number:08}", " ".join(chosen), metadata={"part": number % 100})

    def records(self, size: int) -> Iterator[PassageRecord]:
        """Yield records with a total of ``size`` stored questions, in the form that a build produces."""
        for number, passage in enumerate(self.passages(-(-size // EACH))):
            own = random.Random(f"questions {number}").sample(self.sentences, min(EACH, size - number * EACH))
            asked = (f"What does it mean that {one[0].lower()}{one[1:90]}?" for one in own)
            questions = tuple(WrittenQuestion(f"{one} ({number})", COMPLETE, "The passage says so.") for one in asked)
            yield PassageRecord(passage.id, passage.text_digest(), "benchmark", questions)


class StandIn:
    """An embedder that returns one of the real vectors for a text, plus noise that depends on the text.

    Args:
        real: The real vectors, as rows of length 1.
    """

    id = "stand-in"

    def __init__(self, real: Vectors) -> None:
        self.real, self.dimension = real, int(real.shape[1])

    def encode(self, texts: Sequence[str], /) -> Vectors:
        """Return one row per text."""
        keys = [zlib.crc32(text.encode()) for text in texts]
        noise = np.stack([np.random.default_rng(key).standard_normal(self.dimension, np.float32) for key in keys])
        rows = self.real[[key % len(self.real) for key in keys]] + noise * np.float32(SPREAD / self.dimension**0.5)
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float32)


class Site:
    """The settings that all steps share.

    Args:
        home: The workspace.
        data: The folder with the source texts.
        size: Number of passages, and of stored questions.
        questions: Number of questions in the comparison.
        trials: Number of trials in the study.
    """

    def __init__(self, home: Path, data: Path, size: int, questions: int, trials: int) -> None:
        self.home, self.size, self.questions, self.trials, self.texts = home, size, questions, trials, Texts(data)
        path = home / "real.npy"
        if not path.exists():
            home.mkdir(parents=True, exist_ok=True)
            chosen = random.Random(0).sample(self.texts.sentences, min(REAL, len(self.texts.sentences)))
            np.save(path, resolve_embedder("embedded").encode(chosen))
        self.embedder = StandIn(np.load(path))

    def dense(self, name: str = "passages") -> ChromaRetriever:
        """Open a collection for search by vectors."""
        return ChromaRetriever(name, embedder=self.embedder, home=self.home)

    def words(self) -> BM25Retriever:
        """Open the collection for search by words."""
        return BM25Retriever("passages", home=self.home)


def index(site: Site) -> dict[str, float]:
    """Index the passages."""
    report = build_collection("passages", site.texts.passages(site.size), embedder=site.embedder, home=site.home)
    return {"passages": report.count}


def again(site: Site) -> dict[str, float]:
    """Index the same passages again, when nothing has changed."""
    report = build_collection("passages", site.texts.passages(site.size), embedder=site.embedder, home=site.home)
    return {"rebuilt": report.rebuilt}


def dense(site: Site) -> dict[str, float]:
    """Search by vectors."""
    return opened(site, site.dense)


def words_built(site: Site) -> dict[str, float]:
    """Build the word index."""
    return {"passages": site.words().count}


def words(site: Site) -> dict[str, float]:
    """Search by words."""
    return opened(site, site.words)


def hybrid(site: Site) -> dict[str, float]:
    """Search by vectors and words, and fuse the results."""

    def both() -> HybridRetriever:
        plain = site.dense()
        return HybridRetriever([plain, BM25Retriever("passages", home=site.home, beside=plain)])

    return opened(site, both)


def publish(site: Site) -> dict[str, float]:
    """Publish as many questions as there are passages, for the separate collection that ``asked`` indexes."""
    records = site.texts.records(site.size)
    return {"questions": publish_questions("asked", records, embedder=site.embedder, home=site.home).count}


def match(site: Site) -> dict[str, float]:
    """QB-RAG: search through the stored questions."""
    return opened(site, lambda: QuestionIndex("asked", embedder=site.embedder, home=site.home))


def chroma(site: Site) -> dict[str, float]:
    """Add as many vectors as there are passages to Chroma directly, without our code: the minimum cost."""
    import chromadb
    from chromadb.config import Settings

    settings = Settings(anonymized_telemetry=False, chroma_api_impl="chromadb.api.rust.RustBindingsAPI")
    client: Any = chromadb.PersistentClient(str(site.home / "chroma"), settings=settings)
    calls, sync = calls_and_sync(site.size, client.get_max_batch_size())
    configuration: Any = {"hnsw": hnsw_of(NEIGHBOURS[0], sync)}
    table = client.create_collection("passages", configuration=configuration, embedding_function=None)
    for first, until in pairwise(site.size * call // calls for call in range(calls + 1)):
        ids = [f"passage-{n:08}" for n in range(first, until)]
        table.add(ids=ids, embeddings=site.embedder.encode(ids), metadatas=[{"part": 0} for _ in ids])
    client.close()
    return {"passages": site.size}


def asked(site: Site) -> dict[str, float]:
    """Index the passages of the stored questions."""
    passages = site.texts.passages(-(-site.size // EACH))
    return {"passages": build_collection("asked", passages, embedder=site.embedder, home=site.home).count}


def nothing(site: Site) -> dict[str, float]:
    """Only import the modules, including Chroma's."""
    import chromadb.api.rust  # noqa: F401

    return {}


def compare(site: Site) -> dict[str, float]:
    """Compare two arms that only retrieve, and write the report page."""
    indexed(site, PASSAGES)
    passages = list(site.texts.passages(PASSAGES))
    about = ((number, passages[number % PASSAGES]) for number in range(site.questions))
    asked = [Question(f"q{n}", f"{one.text[:120]} {n}", evidence={one.id: Label.ENTAILED}) for n, one in about]
    began = time.perf_counter()
    made = querywright.compare(
        ["plain", "plain@bm25"], asked, retriever=site.dense(), reader=None, metrics=["recall@5", "ndcg@10"],
        home=site.home, max_passages=10,
    )  # fmt: skip
    compared = time.perf_counter() - began
    page = site.home / "compare.html"
    took = _seconds(lambda: made.report(page))
    table = _seconds(made.to_pandas)
    return {"compare s": compared, "page s": took, "page MB": page.stat().st_size / MB, "table s": table}


def study(site: Site) -> dict[str, float]:
    """Run trials over numeric knobs with all answers cached after the first; compare early and late median times."""
    passages = list(site.texts.passages(PASSAGES))
    asked = [
        Question(f"q{number}", one.text[:120], evidence={one.id: Label.ENTAILED})
        for number, one in enumerate(passages[: DEV + TRAIN + TESTED])
    ]
    with Loopback(0.0) as server:
        place = StudySite.build(site.home / "study", server, passages[:1000], asked, 0)
        ran = run_study(place, "large", place.asked, {**RETRIEVAL, "trials": site.trials, "pruner": "paired"})
    each = [one.seconds for one in ran.walls]
    tenth = max(1, len(each) // 10)
    early, late = statistics.median(each[tenth : 2 * tenth]), statistics.median(each[-tenth:])
    folder = place.folder / "study-large"
    told = _seconds(lambda: status(snapshot(folder)))
    pages: list[str] = []
    drawn = _seconds(lambda: pages.append(study_html(snapshot(folder))))
    return {
        "trials": len(each), "early ms": 1000 * early, "late ms": 1000 * late, "opening s": ran.opening,
        "closing s": ran.closing, "status s": told, "page s": drawn, "page MB": len(pages[0].encode()) / MB,
        "journal MB": (folder / "journal.log").stat().st_size / MB,
    }  # fmt: skip


def indexed(site: Site, size: int) -> None:
    """Build a collection with ``size`` passages."""
    build_collection("passages", site.texts.passages(size), embedder=site.embedder, home=site.home)


PARTS: dict[str, Sequence[Callable[[Site], dict[str, float]]]] = {
    "passages": (index, again, dense, words_built, words, hybrid),
    "questions": (asked, publish, match),
    "chroma": (chroma,),
    "compare": (compare,),
    "study": (study,),
}


def opened(site: Site, make: Callable[[], Any]) -> dict[str, float]:
    """Open a retriever and search: seconds to open, and the p50 and p95 of the search time in milliseconds."""
    began = time.perf_counter()
    retriever = make()
    took = time.perf_counter() - began
    retriever.search(site.texts.queries[:1], K)
    each = [1000 * _seconds(lambda query=query: retriever.search([query], K)) for query in site.texts.queries]  # type: ignore[misc]
    together = 1000 * _seconds(lambda: retriever.search(site.texts.queries[:4], K))
    quantiles = {"p50 ms": statistics.median(each), "p95 ms": float(np.quantile(each, 0.95))}
    return {"open s": took, **quantiles, "four at once ms": together}


def run(step: str, arguments: Sequence[str]) -> dict[str, float]:
    """Run a step in a separate process.

    Raises:
        RuntimeError: The step failed.
    """
    command = [sys.executable, __file__, "--step", step, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = process.stdout.read()
    if process.returncode:
        raise RuntimeError(f"the step {step!r} failed with exit status {process.returncode}")
    found: dict[str, float] = json.loads(told.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--size", type=int, default=20_000)
    parser.add_argument("--questions", type=int, default=10_000, help="number of questions for compare")
    parser.add_argument("--trials", type=int, default=2000, help="number of trials for study")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument(
        "--home", type=Path, help="folder to keep, so that steps can reuse earlier work (default: a temporary folder)"
    )
    parser.add_argument("--json", action="store_true", help="print one line of JSON per step")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.step:
        site = Site(given.home, given.data, given.size, given.questions, given.trials)
        began = time.perf_counter()
        found = globals()[given.step](site)
        took, used = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
        worked = used.ru_utime + used.ru_stime
        written = int(re.findall(r"write_bytes: (\d+)", Path("/proc/self/io").read_text())[0])
        told = {"seconds": took, "processor s": worked, "MB": used.ru_maxrss * 1024 / MB, "written MB": written / MB}
        print(json.dumps({**told, **found}))
        return
    with nullcontext(given.home) if given.home else tempfile.TemporaryDirectory() as folder:
        shared = ["--size", f"{given.size}", "--questions", f"{given.questions}", "--trials", f"{given.trials}"]
        shared += ["--data", f"{given.data}", "--home", f"{folder}"]
        run("nothing", shared)  # creates the real vectors
        bare = run("nothing", shared)["MB"]
        for part in given.part:
            for step in PARTS[part]:
                found = run(step.__name__, shared)
                found = {**found, "MB": found["MB"] - bare, "disk MB": _size(Path(folder)) / MB}
                row = {"part": part, "step": step.__name__, "size": given.size, **found}
                print(json.dumps(row) if given.json else _line(row, step.__doc__ or ""), flush=True)


def _column(data: Path, name: str, column: str) -> list[str]:
    files = sorted(data.glob(f"*/{name}.jsonl"))
    return [json.loads(line)[column] for path in files for line in path.read_bytes().splitlines()]


def _line(row: dict[str, Any], about: str) -> str:
    told = "  ".join(f"{name} {value:,.4g}" for name, value in row.items() if name not in ("part", "step", "size"))
    return f"{row['part']:10} {about:75} {told}"


def _size(folder: Path) -> int:
    return sum(os.stat(file).st_size for file in folder.rglob("*") if file.is_file())


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()

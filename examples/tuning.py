"""Search techniques, knobs, and depth on the packaged handbook, with recorded answers; print the front and verdict."""

from querywright import ChromaRetriever, study
from querywright.data import read_passages, read_questions
from querywright.retrieval.engines import open_retriever

ChromaRetriever.build("handbook", read_passages("handbook"))
retrievers = {engine: open_retriever("handbook", engine=engine) for engine in ("dense", "hybrid")}
questions = read_questions("handbook")
splits = {"train": questions[:20], "dev": questions[20:100], "test": questions[100:]}

NAMED = {"search": "named"}  # search only the knobs that are named
found = study(
    {
        "hcqr": {
            **NAMED,
            "engines": ["dense", "hybrid"],
            "knobs": {"fusion": ["interleave", "rrf"], "n_queries": [1, 2, 3], "top_k": [5, 10], "rrf_k": [20, 60]},
        },
        "corpus_steered": {**NAMED, "engines": ["hybrid"], "knobs": {"feedback": [2, 5]}},
        "rrs": {**NAMED, "engines": ["hybrid"], "knobs": {"select_words": [0, 40]}},
    },
    splits,
    retriever=retrievers,
    lm="recording:handbook",
    reader=None,
    objectives=["full_recall@3", "tokens"],
    trials=40,
    max_passages=3,
)
print(found.front[["technique", "engine", "value.full_recall@3", "value.tokens"]].to_string(index=False))
print(found.compared)
print(found.sentence)

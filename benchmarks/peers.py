"""Do the same work with other libraries: three paraphrases, four searches, and a short answer, in two LM calls.

Each function takes a setting and returns a function from questions to answers. All of them use the same LM server and
embedding model, and search the same index one query at a time, as their interfaces require. An ImportError means that
the library is not installed; run ``pip install --group bench``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import dspy

Search = Callable[[list[str]], list[list[str]]]
"""Function that returns the texts of the best passages for each query, with one embedding batch and one search batch.
"""
Answer = Callable[[Sequence[str]], list[str]]

READ = "Answer the question in as few words as possible, from the passages.\n\n{context}\n\nQuestion: {question}"
WORDINGS = 3
MAX_PASSAGES = 5


@dataclass(frozen=True)
class Setting:
    """The inputs that each library gets.

    Args:
        url: URL of the LM.
        search: Function that finds passages.
        concurrency: Number of questions that run at a time.
    """

    url: str
    search: Search
    concurrency: int


def langchain(setting: Setting) -> Answer:
    """Use MultiQueryRetriever, with the question as one of the queries, and a chain on top, run with ``batch``."""
    os.environ["LANGSMITH_TRACING"] = "false"
    from langchain_classic.retrievers.multi_query import MultiQueryRetriever
    from langchain_core.documents import Document
    from langchain_core.output_parsers import StrOutputParser
    from langchain_core.prompts import ChatPromptTemplate
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.runnables import RunnableLambda, RunnablePassthrough
    from langchain_openai import ChatOpenAI

    class OverIndex(BaseRetriever):
        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
            return [Document(page_content=text) for text in setting.search([query])[0]]

    def shown(documents: list[Document]) -> str:
        return "\n".join(document.page_content for document in documents[:MAX_PASSAGES])

    llm = ChatOpenAI(model="bench", base_url=setting.url, api_key="x", temperature=0, max_retries=0)
    wordings = MultiQueryRetriever.from_llm(retriever=OverIndex(), llm=llm, include_original=True)
    inputs = {"context": wordings | RunnableLambda(shown), "question": RunnablePassthrough()}
    chain = inputs | ChatPromptTemplate.from_template(READ) | llm | StrOutputParser()
    return lambda questions: chain.batch(list(questions), config={"max_concurrency": setting.concurrency})


def llama_index(setting: Setting) -> Answer:
    """Use QueryFusionRetriever with reciprocal rank fusion and one completion, run in threads."""
    from llama_index.core.retrievers import BaseRetriever, QueryFusionRetriever
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
    from llama_index.llms.openai_like import OpenAILike

    class OverIndex(BaseRetriever):
        def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
            texts = setting.search([query_bundle.query_str])[0]
            return [NodeWithScore(node=TextNode(text=text), score=1 / rank) for rank, text in enumerate(texts, 1)]

    llm = OpenAILike(
        model="bench", api_base=setting.url, api_key="x", is_chat_model=True, temperature=0, max_retries=0
    )  # fmt: skip
    fusion = QueryFusionRetriever(
        [OverIndex()],
        llm=llm,
        mode="reciprocal_rerank",
        num_queries=WORDINGS + 1,
        similarity_top_k=MAX_PASSAGES,
        use_async=False,
    )

    def answer(question: str) -> str:
        context = "\n".join(node.get_content() for node in fusion.retrieve(question))
        return str(llm.complete(READ.format(context=context, question=question)))

    return lambda questions: _in_threads(answer, questions, setting.concurrency)


def dspy_by_hand(setting: Setting) -> Answer:
    """Use a DSPy program in the style of its tutorials, with one search per query, run with ``dspy.Evaluate``."""
    return _dspy(setting, lambda queries: [setting.search([query])[0] for query in queries])


def dspy_in_batches(setting: Setting) -> Answer:
    """Use the same program with one embedding batch and one search per question."""
    return _dspy(setting, setting.search)


def _dspy(setting: Setting, search: Search) -> Answer:
    lm = dspy.LM("openai/bench", api_base=setting.url, api_key="x", cache=False, temperature=0)

    signature: Any = dspy.Signature

    class Program(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.write = dspy.Predict(
                signature("question -> queries: list[str]", f"Write {WORDINGS} different wordings.")
            )
            self.read = dspy.Predict(signature("context, question -> answer", "Answer in as few words as possible."))

        def forward(self, question: str) -> dspy.Prediction:
            lists = search([question, *self.write(question=question).queries[:WORDINGS]])
            best = dict.fromkeys(texts[rank] for rank in range(MAX_PASSAGES) for texts in lists if rank < len(texts))
            return self.read(context="\n".join(list(best)[:MAX_PASSAGES]), question=question)

    logging.getLogger("dspy.evaluate.evaluate").setLevel(logging.WARNING)

    def run(questions: Sequence[str]) -> list[str]:
        devset = [dspy.Example(question=question).with_inputs("question") for question in questions]
        evaluate = dspy.Evaluate(
            devset=devset,
            metric=lambda example, prediction, trace=None: 1.0,
            num_threads=setting.concurrency,
            display_progress=False,
        )
        with dspy.context(lm=lm):
            return [str(prediction.answer) for _, prediction, _ in evaluate(Program()).results]

    return run


def node_by_node(setting: Setting) -> Answer:
    """Use a plain loop in the style of AutoRAG: all questions go through one node, then all through the next.

    The nodes are expansion, search, fusion, and generation. All queries in a run are one batch for the embedder.
    """
    lm = dspy.LM("openai/bench", api_base=setting.url, api_key="x", cache=False, temperature=0)

    def ask(prompt: str) -> str:
        return str(lm(prompt)[0])

    def run(questions: Sequence[str]) -> list[str]:
        expand = f"Write {WORDINGS} different versions of the question, one a line.\n\nQuestion: "
        written = _in_threads(ask, [expand + question for question in questions], setting.concurrency)
        asked = [[question, *text.splitlines()[:WORDINGS]] for question, text in zip(questions, written, strict=True)]
        found = iter(setting.search([query for queries in asked for query in queries]))
        contexts = []
        for queries in asked:
            lists = [next(found) for _ in queries]
            best = dict.fromkeys(texts[rank] for rank in range(MAX_PASSAGES) for texts in lists if rank < len(texts))
            contexts.append("\n".join(list(best)[:MAX_PASSAGES]))
        reads = [READ.format(context=one, question=asks) for one, asks in zip(contexts, questions, strict=True)]
        return _in_threads(ask, reads, setting.concurrency)

    return run


def _in_threads(work: Callable[[str], str], questions: Sequence[str], concurrency: int) -> list[str]:
    with ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(work, questions))


PEERS: dict[str, Callable[[Setting], Answer]] = {
    "LangChain MultiQueryRetriever": langchain,
    "LlamaIndex QueryFusionRetriever": llama_index,
    "DSPy by hand, one search per query": dspy_by_hand,
    "DSPy by hand, one batch per question": dspy_in_batches,
    "node by node, as in AutoRAG": node_by_node,
}

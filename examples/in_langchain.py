"""Run a compiled program in LangChain: after `make demo`, run `.venv/bin/python examples/in_langchain.py`.

First install the extra: pip install 'querywright[langchain]'.
"""

from langchain_core.runnables import RunnableLambda

import querywright
from querywright.adapters.langchain import QuerywrightRetriever, as_runnable

QUESTION = "Which home blood pressure reading should be written down?"
OPTIONS = ["Only the highest one", "The average of several, seated and rested", "One after a walk"]


def main() -> None:
    program = querywright.load("artifacts/hcqr-sample")

    retriever = QuerywrightRetriever(program=program)
    for document in retriever.invoke(QUESTION, options=OPTIONS):
        print(document.metadata["rank"], document.id, document.page_content[:60])

    # In a chain, a program with its reader takes a question and returns a dict.
    chain = (
        RunnableLambda(lambda question: {"question": question, "options": OPTIONS})
        | as_runnable(program)
        | RunnableLambda(lambda result: f"{result['answer']} ({len(result['documents'])} documents)")
    )
    print(chain.invoke(QUESTION))


if __name__ == "__main__":
    main()

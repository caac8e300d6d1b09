"""Run a compiled program in LlamaIndex: after `make demo`, run `.venv/bin/python examples/in_llama_index.py`.

First install the extra: pip install 'querywright[llama-index]'.
"""

import querywright
from querywright.adapters.llama_index import ChoiceQuery, QuerywrightQueryEngine, QuerywrightRetriever

QUESTION = ChoiceQuery(
    "Which home blood pressure reading should be written down?",
    options=["Only the highest one", "The average of several, seated and rested", "One after a walk"],
)


def main() -> None:
    program = querywright.load("artifacts/hcqr-sample")

    for node in QuerywrightRetriever(program).retrieve(QUESTION):
        print(node.metadata["rank"], node.node_id, node.text[:60])

    response = QuerywrightQueryEngine(program).query(QUESTION)
    print(response)
    print([query["text"] for query in response.metadata["queries"]])


if __name__ == "__main__":
    main()

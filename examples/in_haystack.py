"""Run a compiled program in a Haystack pipeline: after `make demo`, run `.venv/bin/python examples/in_haystack.py`.

First install the extra: pip install 'querywright[haystack]'. Importing querywright's adapter before Haystack keeps
Haystack's usage statistics off.
"""

from querywright.adapters.haystack import QuerywrightProgram  # isort: skip

from haystack import Pipeline
from haystack.components.builders import AnswerBuilder

QUESTION = "Which home blood pressure reading should be written down?"
OPTIONS = ["Only the highest one", "The average of several, seated and rested", "One after a walk"]


def main() -> None:
    pipeline = Pipeline()
    pipeline.add_component("program", QuerywrightProgram("artifacts/hcqr-sample"))
    pipeline.add_component("answers", AnswerBuilder())
    pipeline.connect("program.answer", "answers.replies")
    pipeline.connect("program.documents", "answers.documents")

    # The saved pipeline contains only the artifact's path. Haystack loads classes from other packages only if you name
    # their modules.
    text = pipeline.dumps()
    pipeline = Pipeline.loads(text, allowed_modules=["querywright.adapters.haystack"])

    result = pipeline.run({"program": {"query": QUESTION, "options": OPTIONS}, "answers": {"query": QUESTION}})
    (answer,) = result["answers"]["answers"]
    print(answer.data, [document.id for document in answer.documents])


if __name__ == "__main__":
    main()

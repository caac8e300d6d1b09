"""Load a compiled program and ask a question: after `make demo`, run `.venv/bin/python examples/load_artifact.py`."""

import querywright

program = querywright.load("artifacts/hcqr-sample", verify=True)
answer = program(
    "Which home blood pressure reading should be written down?",
    ["Only the highest one", "Only the lowest one", "The average of several, seated and rested", "One after a walk"],
)
print(answer.answer, [passage.id for passage in answer.passages])

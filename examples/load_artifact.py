"""Load a compiled program and ask it: after `make demo`, run `.venv/bin/python examples/load_artifact.py`."""

import querywright

program = querywright.load("artifacts/hcqr-sample", verify=True)
answer = program(
    "How should I sit before I take my blood pressure at home?", ["Lying flat", "Back supported, feet flat"]
)
print(answer.answer, [passage.id for passage in answer.passages])

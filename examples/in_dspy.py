"""Use a compiled program in a larger DSPy program: after `make demo`, run `.venv/bin/python examples/in_dspy.py`."""

import dspy

import querywright
from querywright.adapters.dspy import as_module, save_module

QUESTION = "Which home blood pressure reading should be written down?"
OPTIONS = ["Only the highest one", "The average of several, seated and rested", "One after a walk"]


class Careful(dspy.Module):
    """Ask twice, the second time with the options reversed, and answer only if both answers agree."""

    def __init__(self, rag: dspy.Module) -> None:
        super().__init__()
        self.rag = rag

    def forward(self, question: str, options: list[str]) -> dspy.Prediction:  # noqa: D102
        first = self.rag(question=question, options=options)
        second = self.rag(question=question, options=options[::-1])
        return dspy.Prediction(answer=first.answer if first.answer == second.answer else None)


def main() -> None:
    # The optimizer's prompts have no recorded answers, so the program needs a live LM. Name yours here.
    program = Careful(as_module(querywright.load("artifacts/hcqr-sample", lm="embedded")))
    print([name for name, _ in program.named_predictors()])

    # DSPy's optimizers see the predictors inside the program. The tuned program can be saved as an artifact again.
    train = [dspy.Example(question=QUESTION, options=OPTIONS, answer=OPTIONS[1]).with_inputs("question", "options")]
    tuner = dspy.BootstrapFewShot(metric=lambda example, made, trace=None: made.answer is not None)
    tuned = tuner.compile(program, trainset=train)
    save_module("artifacts/hcqr-careful", tuned.rag)
    print(querywright.load("artifacts/hcqr-careful", lm="embedded")(QUESTION, OPTIONS).answer)


if __name__ == "__main__":
    main()

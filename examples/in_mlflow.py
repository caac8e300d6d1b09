"""A compiled program as an MLflow model: after `make demo`, run `.venv/bin/python examples/in_mlflow.py`.

Needs the extra: pip install 'querywright[mlflow]'. Imported first, it leaves MLflow's usage statistics off.
"""

from querywright.adapters.mlflow import load_logged, log_artifact_folder  # isort: skip

import mlflow

QUESTION = "Which home blood pressure reading should be written down?"
OPTIONS = ["Only the highest one", "The average of several, seated and rested", "One after a walk"]


def main() -> None:
    with mlflow.start_run():
        logged = log_artifact_folder("artifacts/hcqr-sample")

    # As MLflow loads any model: a table in, a table out.
    model = mlflow.pyfunc.load_model(logged.model_uri)
    print(model.predict([{"question": QUESTION, "options": OPTIONS}])[["answer", "passages"]].to_string())

    # Or as querywright loads an artifact.
    program = load_logged(logged.model_uri)
    print(program(QUESTION, OPTIONS).answer)


if __name__ == "__main__":
    main()

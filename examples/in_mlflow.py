"""Store a compiled program in MLflow's artifact store: after `make demo`, run `.venv/bin/python examples/in_mlflow.py`.

First install the extra: pip install 'querywright[mlflow]'. An artifact is a folder of JSON files, so MLflow needs no
adapter.
"""

import mlflow
from mlflow.artifacts import download_artifacts

import querywright

QUESTION = "Which home blood pressure reading should be written down?"
OPTIONS = ["Only the highest one", "The average of several, seated and rested", "One after a walk"]


def main() -> None:
    with mlflow.start_run() as run:
        mlflow.log_artifacts("artifacts/hcqr-sample", "program")

    program = querywright.load(download_artifacts(run_id=run.info.run_id, artifact_path="program"))
    print(program(QUESTION, OPTIONS).answer)


if __name__ == "__main__":
    main()

"""Create the screenshot of a report for the README: the demo's comparison, from recorded answers.

Usage: python benchmarks/picture.py [OUT.png]. Run querywright demo first; chromium must be on the path.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import querywright as qw
from querywright.cli.demo import ARMS, BUDGET, SIZES

WIDTH, HEIGHT = 1200, 830


def main(out: Path) -> None:
    """Run the comparison, write the report, and take a screenshot."""
    questions = qw.split_questions(qw.load_sample().questions, sizes=SIZES).test
    found = qw.compare(
        ARMS, questions, lm="recording:sample", retriever="sample", reader=None, metrics=["decision_useful"],
        max_passages=BUDGET, references=False,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        found.report(page, title="Seven techniques and the baseline on the packaged sample")
        subprocess.run(
            ["chromium", "--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={WIDTH},{HEIGHT}",
             "--virtual-time-budget=5000", f"--screenshot={out}", page.as_uri()],
            check=True, capture_output=True,
        )  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1] if sys.argv[1:] else "docs/assets/report.png").absolute())

"""Threads that wait without spinning.

torch and llama.cpp share one OpenMP runtime in a process. Its threads spin at the end of each step, and on a machine
that has other work to do they then starve each other: measured from ten to more than a hundred times slower.
"""

from __future__ import annotations

import os


def limit_spinning() -> None:
    """Have OpenMP threads spin for a moment only; to be called before the first library that uses them is loaded.

    The runtime reads its environment once, when it is loaded. An application that loads torch before querywright does
    should set ``GOMP_SPINCOUNT=100`` itself; a value that is set already is kept.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "100")

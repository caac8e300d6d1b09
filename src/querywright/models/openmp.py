"""What torch, transformers and llama.cpp are told before they work: not to spin, and not to draw bars."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections.abc import Iterator
from typing import Any


def limit_spinning() -> None:
    """Have OpenMP threads spin for a moment only; to be called before the first library that uses them is loaded.

    torch and llama.cpp share one OpenMP runtime in a process. Its threads spin at the end of each step, and on a
    machine that has other work to do they then starve each other: measured from ten to more than a hundred times
    slower. The runtime reads its environment once, when it is loaded. An application that loads torch before
    querywright does should set ``GOMP_SPINCOUNT=100`` itself; a value that is set already is kept.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "100")


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Inside the ``with`` block transformers draws no bars and makes no remarks while it loads."""
    from transformers.utils import logging

    said: Any = logging  # its functions carry no types
    reading: Any = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    level, bars, bar = said.get_verbosity(), said.is_progress_bar_enabled(), reading.tqdm
    said.set_verbosity_error()
    said.disable_progress_bar()
    reading.tqdm = functools.partial(bar, disable=True)  # this one listens to no setting
    try:
        yield
    finally:
        reading.tqdm = bar
        said.set_verbosity(level)
        if bars:
            said.enable_progress_bar()

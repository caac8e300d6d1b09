"""Language models and embedders by name."""

import os

# torch and llama.cpp share one OpenMP runtime in a process, whose threads spin at the end of each step. Beside other
# work they then starve each other, ten to more than a hundred times. It reads its environment once, when it is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "100")

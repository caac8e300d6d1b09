"""Language models, embedders, and their cache."""

import os

# torch and llama.cpp share an OpenMP runtime, whose threads spin at the end of each step. If other work runs at the
# same time, spinning slows down both by a factor of 10 to 100. The runtime reads this variable only once, when it
# starts.
os.environ.setdefault("GOMP_SPINCOUNT", "100")

"""Training a small model to rewrite: collected rewrites, a warm-up on the best, reinforcement by what they retrieve."""

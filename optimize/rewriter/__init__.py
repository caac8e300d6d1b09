"""Train a small model to rewrite: collect rewrites, warm up on the best, and reinforce by retrieval results."""

"""Train a small model to write rewrites.

Training collects rewrites, fine-tunes the model on the best ones, and then runs reinforcement learning with retrieval
results as the reward.
"""

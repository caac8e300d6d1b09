"""A search in memory: space, objectives, sampler, trials on dev, and the test that follows."""

"""Language models and embedders by name."""

"""Studies: techniques, prompts and numbers searched together, every question answered once."""

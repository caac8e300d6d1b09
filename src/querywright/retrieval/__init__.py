"""Collections of passages in Chroma, retrievers that search them, and fusion of results."""

"""Passages in Chroma and what is searched: collections, fusion, retrievers."""

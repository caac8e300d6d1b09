"""Studies: a search with storage, several workers, and a report."""

"""Compiled programs in other frameworks, one module each.

``langchain``, ``llama_index``, ``haystack``, ``mcp`` and ``mlflow`` import their framework and need the extra of that
name; ``dspy`` needs nothing more.
"""

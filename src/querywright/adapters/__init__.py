"""Compiled programs in other frameworks, one module per framework.

``langchain``, ``llama_index``, ``haystack``, ``mcp``, and ``mlflow`` import their framework and need the extra of the
same name. ``dspy`` needs no extra.
"""

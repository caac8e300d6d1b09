"""Use compiled programs in other frameworks, with one module per framework.

``langchain``, ``llama_index``, ``haystack``, ``mcp``, and ``mlflow`` import their framework and require the extra with
the same name. ``dspy`` does not require an extra.
"""

"""The packaged sample: cards on type 2 diabetes and high blood pressure, and questions that a card decides.

``cards.jsonl``: id, title, text. ``questions.jsonl`` and ``questions-hard.jsonl``: id, question, options, answer,
evidence (label by card id), jointly, why (one sentence for people; not read).
"""

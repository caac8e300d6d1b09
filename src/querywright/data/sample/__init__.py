"""The packaged sample: cards about type 2 diabetes and high blood pressure, and questions that the cards answer.

Fields in ``cards.jsonl``: id, title, text. Fields in ``questions.jsonl`` and ``questions-hard.jsonl``: id, question,
options, answer, evidence (labels by card id), jointly, why (one sentence for people; not read by the code).
"""

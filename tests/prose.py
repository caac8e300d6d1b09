"""Report phrases that the project avoids, with their replacements. ``make lint`` runs this script.

Run: python tests/prose.py [FILE ...]
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ("*.md", "docs/**/*.md", "docs/llms.txt", "artifacts/README.md")
CODE = ("src/querywright/**/*.py", "programs/*.py", "metrics/*.py", "optimize/**/*.py")

PROMPTS = {
    ("metrics/feedback.py", "What was given"),
    ("metrics/feedback.py", "stands in"),
    ("programs/corpus_steered.py", "beside"),
    ("programs/readers.py", "is no"),
    ("src/querywright/models/adapter.py", "is no"),
    ("src/querywright/models/response_parsing.py", "is no"),
}
"""Files and phrases of prompts. A changed prompt makes recorded answers stale, so these stay."""

RULES = {
    r"no rewriting": "the baseline",
    r"(?:held|holds?|holding) against": "compared with",
    r"(?<!there\s)(?:is|are|was|were) no (?!longer|more|less|better|worse|fewer|larger)": "is not",
    r"(?:that|those) of (?:the|an?|its|their|one)": "the noun again: the score of the baseline",
    r"(?:of|for) (?:its|their|your|our|his|one's) own": "its, your, separate, or custom",
    r"(?:LMs?|models?|one|that is|that are) elsewhere": "a remote LM",
    r"where (?:none|there (?:is|are))": "if",
    r"goes on": "resumes or continues",
    r"working folder": "workspace",
    r"(?:came|comes?) to nothing": "failed",
    r"as (?:it|they) (?:comes?|lies?|stands?)": "unchanged",
    r"beside": "next to",
    r"as written": "unchanged or untuned",
    r"asked of": "sent to",
    r"in the place of": "instead of",
    r"mend(?:s|ed|ing)?": "repair or fix",
    r"so many": "the number of, or up to N",
    r"stands? (?:in|for|on|at|behind|around|there|below|above|beside)": "is",
    r"(?:stays?|kept|keeps?|was|were) as (?:it|they) (?:is|are|was|were)": "unchanged",
    r"calls? a (?:question|passage)": "calls per question",
    r"what (?:was|were|came) (?:found|asked|written|said|given|of)": "the noun: the results, the answer",
}
"""Patterns, each with the words to write instead. A space in a pattern matches any white space, even a line break."""


def findings(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the phrase, and the replacement for each phrase found outside code and link URLs."""
    code = r"^```.*?^```$|`[^`]+`|\]\([^)]+\)"
    text = re.sub(code, lambda match: re.sub(r"[^\n]", "-", match[0]), text, flags=re.MULTILINE | re.DOTALL)
    for pattern, replacement in RULES.items():
        for match in re.finditer(rf"\b{pattern}\b".replace(" ", r"\s+"), text, re.IGNORECASE):
            yield text.count("\n", 0, match.start()) + 1, " ".join(match[0].split()), replacement


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each text in a file with its first line: every string in Python code, or a whole page."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
        yield from ((node.lineno, node.value) for node in nodes if isinstance(node.value, str))
    else:
        yield 1, text


def main(names: list[str]) -> int:
    """Print each finding as ``FILE:LINE: "phrase": write replacement``, and return 1 if there is one."""
    paths = [Path(name) for name in names] or sorted(path for one in (*PAGES, *CODE) for path in ROOT.glob(one))
    found = 0
    for path in paths:
        for first, text in texts(path):
            for line, phrase, replacement in sorted(findings(text)):
                if any(path.match(file) and phrase == kept for file, kept in PROMPTS):
                    continue
                print(f'{path}:{first + line - 1}: "{phrase}": write {replacement}')
                found = 1
    return found


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

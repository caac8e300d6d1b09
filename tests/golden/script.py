"""An LM that knows the packaged sample: what it answers is a function of the messages alone, and of no seed or draw.

It writes queries with the titles of the deciding passages for four questions of five, and for all where it is shown
demonstrations; it chooses the right option where it reads such a passage (else one by hash), labels passages as the
sample does (one of ten wrongly), and asks questions of a passage in the words of its sentences.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from querywright.data import load_sample

SAMPLE = load_sample()
TITLES = {passage.id: passage.title for passage in SAMPLE.passages}
PASSAGES = {passage.title: passage for passage in SAMPLE.passages}


def text_of(message: Mapping[str, Any]) -> str:
    """A message's text, however it is sent."""
    content = message["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def reply(body: Mapping[str, Any]) -> str:
    """The JSON object that a prompt asks for."""
    messages = body["messages"]
    system, asked = text_of(messages[0]), text_of(messages[-1])
    key = digest(json.dumps([text_of(one) for one in messages]))
    fields = re.findall(r"^- (\w+):? ?(.*)$", system.rpartition("fields:")[2], re.MULTILINE)
    taught = len(messages) > 2
    return json.dumps({name: _value(name, form, asked, key, taught) for name, form in fields})


def digest(text: str) -> int:
    """A number that is the text's own."""
    return int(hashlib.sha256(text.encode()).hexdigest()[:12], 16)


def _value(name: str, form: str, asked: str, key: int, taught: bool) -> Any:
    question = max(SAMPLE.questions, key=lambda one: asked.rfind(one.question))
    known = question.question in asked
    helpful = [TITLES[id] for id, label in question.evidence.items() if label == "ENTAILED"] if known else []
    pick = digest(f"{name} {key}")
    if "one of " in form:
        choices = json.loads("[" + form.partition("one of ")[2].replace('" | "', '","') + "]")
        if set(choices) >= {"NOT_USEFUL", "USEFUL"}:
            labels = [label for id, label in question.evidence.items() if known and TITLES[id] in asked]
            return choices[pick % len(choices)] if pick % 10 == 0 else (labels or ["NOT_USEFUL"])[0]
        if question.answer in choices and any(title in asked for title in helpful):
            return question.answer
        return "complete" if "complete" in choices and pick % 5 else choices[pick % len(choices)]
    if "true or false" in form:
        return bool(pick % 2)
    if "number" in form and "list" not in form:
        return pick % 5
    written = _queries(asked, helpful, known and (taught or digest(question.id) % 5 != 0), pick)
    return written if "list" in form else written[0]


def _queries(asked: str, helpful: list[str], clever: bool, pick: int) -> list[str]:
    if clever:
        return [*helpful, f"{helpful[0]}: what to know and what to do"] if helpful else ["what to know"]
    shown = max(PASSAGES.values(), key=lambda one: asked.rfind(one.text))
    source = shown.text if shown.text in asked else asked
    words = re.findall(r"[^\W_]{3,}", source)
    return [" ".join(words[at : at + 7]) + "?" for at in range(0, min(len(words), 60), 12)] or ["nothing?"]

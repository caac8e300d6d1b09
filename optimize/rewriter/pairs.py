"""Files of prompts and completions: written line by line, and read again with every line checked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from querywright.errors import InputError
from querywright.files import write_file
from querywright.optimize.evaluate import finite
from querywright.optimize.rewriter.keeping import add_line
from querywright.optimize.rewriter.types import Pair

ROLES = frozenset({"system", "user", "assistant"})
MOST_CHARS = 16 * 2**20
"""Characters of a line at most."""


def write_pairs(path: Path, pairs: Sequence[Pair]) -> None:
    """Write pairs, a line each; the file is the old one or the new one at every moment."""
    write_file(
        path,
        "".join(json.dumps(pair_json(pair), ensure_ascii=False) + "\n" for pair in pairs).encode("utf-8", "replace"),
    )


def read_pairs(path: Path) -> list[Pair]:
    """Pairs that ``write_pairs`` wrote, or one's own in the same form.

    Raises:
        InputError: The file cannot be read, or a line is no pair; the message names the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"{path.name!r} cannot be read: {error.strerror}; give a file of pairs, a line each"
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path.name} is not UTF-8 (byte {error.start}); save it as UTF-8") from None
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                found.append(pair_of(_parsed(line)))
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                raise InputError(
                    f"{path.name}, line {number}: no pair ({_said(error)}); a pair is an object with question, "
                    "technique, number, messages (pairs of a role and a text), text, reward and source, and where they "
                    "are known data (the collection) and asked"
                ) from None
    return found


def pair_json(pair: Pair) -> dict[str, Any]:
    """A pair as a JSON object; what is not known of it is left out."""
    made = {
        "question": pair.question,
        "technique": pair.technique,
        "number": pair.number,
        "messages": [list(message) for message in pair.messages],
        "text": pair.text,
        "reward": finite(pair.reward),
        "source": pair.source,
    }
    known = {"data": pair.data, "asked": pair.asked}
    return made | {name: value for name, value in known.items() if value}


def pair_of(data: Mapping[str, Any]) -> Pair:
    """The pair that ``pair_json`` wrote.

    Raises:
        ValueError: It is no pair.
        KeyError: Something is missing.
    """
    messages = []
    for message in data["messages"]:
        role, content = message
        if role not in ROLES:
            raise ValueError(f"the role {str(role)[:40]!r}")
        messages.append((str(role), _text(content, "a message")))
    if not messages:
        raise ValueError("no messages")
    if type(data["number"]) is not int or data["number"] < 0:
        raise ValueError(f"the number {str(data['number'])[:40]}")
    text, reward = _text(data["text"], "text"), data["reward"]
    if not text.strip():
        raise ValueError("an empty text")
    return Pair(
        question=_text(data["question"], "question"),
        technique=_text(data["technique"], "technique"),
        number=data["number"],
        messages=tuple(messages),
        text=text,
        reward=float("nan") if reward is None else float(reward),
        source=_text(data["source"], "source"),
        data=_text(data.get("data", ""), "data"),
        asked=_text(data.get("asked", ""), "asked"),
    )


def open_lines(path: Path, head: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The lines of a file that ``add_line`` adds to; half a line at its end, of a killed process, is cut off.

    Args:
        path: The file; made when it is missing.
        head: What its lines depend on, kept in its first line.

    Returns:
        The lines that are there.

    Raises:
        InputError: It was made for something else, or is something else.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with path.open("a+b") as file:
        file.seek(0)
        lines, end = [], 0
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                break
            try:
                lines.append(_parsed(line))
            except (ValueError, RecursionError) as error:
                raise InputError(
                    f"{path.name}, line {number}: {_said(error)}; delete the file to begin again"
                ) from None
            end += len(line)
        file.truncate(end)
    known = json.loads(json.dumps(head))
    if not lines:
        add_line(path, known)
    elif lines[0] != known:
        changed = sorted(key for key in {*lines[0], *known} if lines[0].get(key) != known.get(key))
        raise InputError(
            f"{path.name} was made with other settings ({', '.join(changed)} differ); give another folder "
            "(--work), or delete it to begin again"
        )
    return lines[1:]


def _parsed(line: str | bytes) -> dict[str, Any]:
    if len(line) > MOST_CHARS:
        raise ValueError(f"more than {MOST_CHARS:,} characters")
    data = json.loads(line)
    if not isinstance(data, dict):
        raise ValueError("no JSON object")
    return data


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} is no text")
    return value


def _said(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)

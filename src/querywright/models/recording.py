"""Recordings: answers of an LM in a file, which stand in for the LM where the same is asked again.

``write_recording`` takes the answers that a working folder keeps; ``--lm recording:FILE`` gives them. An answer is
found by what was asked, not by who was asked or where, so that one file can hold what several LMs said in several
roles. The file is gzipped JSON lines: a head, then one answer a line with the digest of its prompt. There is no prompt
in it, no address and no key.
"""

from __future__ import annotations

import datetime
import gzip
import hashlib
import json
import re
import zlib
from collections import Counter
from collections.abc import Collection
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from dspy.lm15 import Request, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from querywright.errors import InputError
from querywright.files import SHARED, write_file, writing
from querywright.models.engine_errors import LMModelError
from querywright.models.response_parsing import system_text, text_response
from querywright.models.store import Store
from querywright.shared import Shared

KIND = "lm"
"""Kind of the answers of LMs in a store."""
PREFIX = "recording:"
SAMPLE = "sample"
PACKAGED = f"{PREFIX}{SAMPLE}"
"""The name of the packaged one."""
MOST_BYTES = 256 * 1024 * 1024
"""Bytes of a recording once it is unpacked, at most."""
_SHOWN = 120  # characters of a prompt in an error
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ,._()/:-]{0,79}")


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Head(_Row):
    recording: Literal[1]
    model: str = Field(pattern=f"^{_LABEL.pattern}$")
    made: datetime.date


class _Answer(_Row):
    prompt: str
    instructions: str
    text: str
    finish_reason: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


def packaged_recording() -> Path:
    """What a large LM answered to the questions of the sample."""
    return Path(str(resources.files("querywright.data.sample") / "recording.jsonl.gz"))


def digests_of(request: Request) -> dict[str, str]:
    """What an answer is found by: SHA-256 of the prompt with its seed, and of its instructions, as hex.

    The model, the form of the answer and its length are left out: another provider is asked for them in another way.
    """
    instructions = system_text(request)
    asked = [instructions, *([one.role, one.text or ""] for one in request.messages), request.config.seed]
    return {"prompt": _digest(json.dumps(asked, ensure_ascii=False)), "instructions": _digest(instructions)[:16]}


class RecordingEngine(Shared):
    """Answers from a recording, and from nothing else.

    Args:
        path: The file; ``sample`` for the packaged one, of which the demo is made.

    Raises:
        InputError: It is no recording, or damaged, or cannot be read.
    """

    deterministic = True
    supports_response_schema = False
    supported_params = frozenset({"temperature", "max_tokens", "seed", "stop", "top_p"})

    def __init__(self, path: Path) -> None:
        is_packaged = str(path) == SAMPLE
        self.path = packaged_recording() if is_packaged else path
        head, self._answers = read_recording(self.path)
        self.identity = f"{PREFIX}{SAMPLE if is_packaged else head.model}"
        self._instructions = {one.instructions for one in self._answers.values()}
        content = "".join(f"{prompt}{self._answers[prompt].text}" for prompt in sorted(self._answers))
        self.answers_identity = f"{self.identity} {_digest(content)[:16]}"

    def complete(self, request: Request) -> Response:
        """The recorded answer.

        Raises:
            LMModelError: There is none; it says what was asked and how to record it.
        """
        asked = digests_of(request)
        answer = self._answers.get(asked["prompt"])
        if answer is None:
            last = next((one.text for one in reversed(request.messages) if one.role == "user"), "") or ""
            shown = " ".join(last.split())[:_SHOWN]
            known = asked["instructions"] in self._instructions
            why = (
                "of this prompt, whose instructions it knows,"
                if known
                else "of these instructions, which it does not know,"
            )
            raise LMModelError(
                f"this question is not in the recording {self.path.name!r}, which gives recorded answers alone: ask an "
                f"LM, such as --lm embedded. It holds no answer {why} asked of: {shown!r} ... (prompt "
                f"{asked['prompt'][:12]}). To record it, ask an LM once (--lm NAME, the same --home), then: "
                "querywright recording write FILE"
            )
        return text_response(
            answer.text, answer.finish_reason, self.identity, answer.input_tokens, answer.output_tokens
        )


def write_recording(path: Path, store: Store, *, models: Collection[str] = (), label: str = "") -> tuple[str, int, int]:
    """Write the answers that a store keeps.

    Args:
        path: The file, ``.jsonl.gz``. The same answers give the same bytes, but for the day.
        store: Where they are kept.
        models: Whose answers, by the names that the LMs gave for themselves; where two answered the same, the first
            one's. Where none is given there must be one.
        label: What the LM is called in results, up to 80 letters, digits, spaces and ``,._()/:-``. Default: its name.

    Returns:
        The label, how many answers were written, and to how many prompts there was another one, which was left out:
        a prompt may have been asked in two ways, such as with other limits, or of two LMs.

    Raises:
        InputError: There are no answers, or of several models, or the label is no such text.
    """
    kept: dict[str, list[dict[str, Any]]] = {}
    for value in store.values(KIND):
        record = json.loads(value)
        if "prompt" in record:
            kept.setdefault(str(record.pop("model")), []).append(record)
    missing = [name for name in models if name not in kept]
    if not kept or missing:
        what = f"answers of {', '.join(missing)}" if missing else "answers of an LM"
        raise InputError(f"the working folder keeps no {what}; it has those of: {', '.join(sorted(kept)) or 'none'}")
    if not models and len(kept) > 1:
        raise InputError(f"the working folder keeps answers of {', '.join(sorted(kept))}; say whose (--model NAME)")
    chosen = list(dict.fromkeys(models or kept))
    label = label or " and ".join(name.removeprefix(PREFIX) for name in chosen)
    if not _LABEL.fullmatch(label) or label == SAMPLE:
        raise InputError(
            f"a label has up to 80 letters, digits, spaces and ,._()/:- and is not {SAMPLE!r}, which is the packaged "
            f"recording's, but got {label!r:.100}; give another (--label)"
        )
    answers = {one["prompt"]: one for name in reversed(chosen) for one in kept[name]}
    head = _Head(recording=1, model=label, made=datetime.datetime.now(datetime.UTC).date())
    several = Counter(prompt for prompt, _ in {(one["prompt"], one["text"]) for name in chosen for one in kept[name]})
    rows = [
        _Answer.model_validate({key: one[key] for key in _Answer.model_fields} | {"text": _whole(one["text"])})
        for _, one in sorted(answers.items())
    ]
    lines = "".join(f"{row.model_dump_json()}\n" for row in [head, *rows])
    with writing(f"the recording {path.name!r}", place="FILE"):
        write_file(path, gzip.compress(lines.encode(), mtime=0), mode=SHARED)
    return label, len(rows), sum(count > 1 for count in several.values())


def read_recording(path: Path) -> tuple[_Head, dict[str, _Answer]]:
    """The head of a recording, and its answers by the digests of their prompts.

    Raises:
        InputError: It is no recording, or damaged, or cannot be read.
    """
    try:
        with gzip.open(path) as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise InputError(f"the recording {path.name!r} has more than {MOST_BYTES >> 20} MiB; write smaller ones")
        rows = content.decode().split("\n")[:-1]  # an answer may hold ends of lines that are not ours
        head = _Head.model_validate_json(rows[0] if rows else "")
        answers = [_Answer.model_validate_json(row) for row in rows[1:]]
    except OSError as error:
        raise InputError(
            f"the recording {str(path)!r} cannot be read: {error.strerror or error}; querywright recording write makes "
            "one"
        ) from error
    except (EOFError, zlib.error, UnicodeDecodeError, ValidationError) as error:
        raise InputError(f"{path.name!r} is no recording, or damaged; querywright recording write makes one") from error
    return head, {one.prompt: one for one in answers}


def _whole(text: str) -> str:
    """The text without half of a surrogate pair, which no file can hold."""
    return text.encode("utf-8", "replace").decode()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

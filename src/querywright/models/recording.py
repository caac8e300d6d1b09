"""Recordings: files of LM answers that replace the LM for the same prompts.

``write_recording`` writes a workspace's cached answers to a file, and ``--lm recording:FILE`` replays them. Answers are
looked up by prompt only, regardless of the model and its URL, so one file can contain the answers of several LMs in
different roles. The file is gzipped JSON lines: a header, then one answer per line with its prompt's digest. It
contains no prompts, URLs, or API keys.
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
"""The kind under which a store keeps LM answers."""
PREFIX = "recording:"
PACKAGED = {"sample": "recording.jsonl.gz", "handbook": "handbook-recording.jsonl.gz"}
"""File names of the packaged recordings, by recording name."""
PASSAGES = {"handbook": 3}
"""The value of max_passages with which a packaged recording was made, if it was made with only one value."""
MOST_BYTES = 256 * 1024 * 1024
"""Maximum size of an uncompressed recording, in bytes."""
_SHOWN = 120  # maximum number of characters of a prompt that an error message shows
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


def packaged_recording(name: str) -> Path:
    """Return the path of a packaged recording: a large LM's answers to the questions in a packaged set.

    Args:
        name: ``sample`` or ``handbook``.
    """
    return Path(str(resources.files("querywright.data.sample") / PACKAGED[name]))


def digests_of(request: Request) -> dict[str, str]:
    """Return the digests used to look up an answer: SHA-256, as hex, of the prompt and seed, and of the instructions.

    The model, the response format, and the token limit are not included, because providers express them differently.
    """
    instructions = system_text(request)
    asked = [instructions, *([one.role, one.text or ""] for one in request.messages), request.config.seed]
    return {"prompt": _digest(json.dumps(asked, ensure_ascii=False)), "instructions": _digest(instructions)[:16]}


class RecordingEngine(Shared):
    """Answers requests only from a recording.

    Args:
        path: The recording file, or ``sample`` or ``handbook`` for a packaged recording.

    Raises:
        InputError: The file is not a recording, is damaged, or cannot be read.
    """

    deterministic = True
    supports_response_schema = False
    supported_params = frozenset({"temperature", "max_tokens", "seed", "stop", "top_p"})

    def __init__(self, path: Path) -> None:
        is_packaged = str(path) in PACKAGED
        self._passages = PASSAGES.get(str(path))
        self.path = packaged_recording(str(path)) if is_packaged else path
        head, self._answers = read_recording(self.path)
        self.identity = f"{PREFIX}{path if is_packaged else head.model}"
        self._instructions = {one.instructions for one in self._answers.values()}
        content = "".join(f"{prompt}{self._answers[prompt].text}" for prompt in sorted(self._answers))
        self.answers_identity = f"{self.identity} {_digest(content)[:16]}"

    def complete(self, request: Request) -> Response:
        """Return the recorded answer.

        Raises:
            LMModelError: The answer is not in the recording; the message shows the prompt and says which settings to
                use, and how to record the answer.
        """
        asked = digests_of(request)
        answer = self._answers.get(asked["prompt"])
        if answer is None:
            last = next((one.text for one in reversed(request.messages) if one.role == "user"), "") or ""
            shown = " ".join(last.split())[:_SHOWN]
            known = asked["instructions"] in self._instructions
            why = "the same instructions, but with different inputs" if known else "no prompt with these instructions"
            passages = "" if self._passages is None else f" ({self._passages} in this file)"
            raise LMModelError(
                f"the recording {self.path.name!r} has no answer to this prompt: {shown!r} ... (digest "
                f"{asked['prompt'][:12]}). The file contains {why}. Use the settings with which the file was recorded: "
                f"the same questions, collection, technique, reader, and max_passages={passages}. Otherwise, use an "
                "LM, such as --lm embedded. To record the answer, run the command once with an LM (--lm NAME, the same "
                "--home), then: querywright recording write FILE"
            )
        return text_response(
            answer.text, answer.finish_reason, self.identity, answer.input_tokens, answer.output_tokens
        )


def write_recording(path: Path, store: Store, *, models: Collection[str] = (), label: str = "") -> tuple[str, int, int]:
    """Write the LM answers in a store to a recording.

    Args:
        path: Path of the ``.jsonl.gz`` file. Writing the same answers on the same day results in identical bytes.
        store: Store that contains the answers.
        models: Names of the LMs whose answers to write, as the LMs themselves report them. If two LMs answered the same
            prompt, the answer from the one listed first is written. Default: the only LM in the store.
        label: Name to show for the LM in results: up to 80 letters, digits, spaces, and ``,._()/:-``. Default: the LM's
            name.

    Returns:
        The label, the number of answers, and the number of prompts for which other answers were left out. A prompt may
        have several answers, for example because limits differed or because two LMs answered it.

    Raises:
        InputError: There are no answers, the store has several LMs and none was chosen, or the label is not allowed.
    """
    kept: dict[str, list[dict[str, Any]]] = {}
    for value in store.values(KIND):
        record = json.loads(value)
        if "prompt" in record:
            kept.setdefault(str(record.pop("model")), []).append(record)
    missing = [name for name in models if name not in kept]
    if not kept:
        raise InputError("the workspace has no LM answers; run a command with an LM first (--lm NAME)")
    if missing:
        raise InputError(
            f"the workspace has no answers from {', '.join(missing)}, only from {', '.join(sorted(kept))}; choose one "
            "of these LMs (--model NAME)"
        )
    if not models and len(kept) > 1:
        raise InputError(
            f"the workspace has answers from several LMs: {', '.join(sorted(kept))}; choose an LM with --model NAME"
        )
    chosen = list(dict.fromkeys(models or kept))
    label = label or " and ".join(name.removeprefix(PREFIX) for name in chosen)
    if not _LABEL.fullmatch(label) or label in PACKAGED:
        raise InputError(
            f"the label {label!r:.100} is reserved for a packaged recording; choose a different label (--label)"
            if label in PACKAGED
            else f"the label {label!r:.100} is not valid; use at most 80 letters, digits, spaces, and ,._()/:- "
            "characters, and start with a letter or digit (--label)"
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
    """Return a recording's header, and its answers keyed by prompt digest.

    Raises:
        InputError: The file is not a recording, is damaged, or cannot be read.
    """
    try:
        with gzip.open(path) as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise InputError(
                f"the recording {path.name!r} is larger than the limit of {MOST_BYTES >> 20} MiB; split it into "
                "smaller files"
            )
        rows = content.decode().split("\n")[:-1]  # an answer may contain other line terminators
        head = _Head.model_validate_json(rows[0] if rows else "")
        answers = [_Answer.model_validate_json(row) for row in rows[1:]]
    except OSError as error:
        raise InputError(
            f"cannot read the recording {str(path)!r}: {error.strerror or error}; check the path, or create the file "
            "with querywright recording write"
        ) from error
    except (EOFError, zlib.error, UnicodeDecodeError, ValidationError) as error:
        raise InputError(
            f"{path.name!r} is damaged or is not a recording; create it with querywright recording write"
        ) from error
    return head, {one.prompt: one for one in answers}


def _whole(text: str) -> str:
    """Return the text without lone surrogates, which a file cannot contain."""
    return text.encode("utf-8", "replace").decode()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

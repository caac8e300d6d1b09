"""A llama.cpp server in this process, and chats with it.

Identical requests get identical answers. The server has only one slot, so earlier or simultaneous requests do not
change the order of floating-point operations in a chat.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dspy.utils.exceptions import LMInvalidRequestError, LMProviderError

from querywright.models.constrained_decoding import Form
from querywright.models.engine_errors import LMPromptTooLongError
from querywright.models.gguf_files import broken_up, read_vocabulary

# A penalty for repeated runs of tokens, which grows with the length of the run (DRY, "don't repeat yourself"). Runs of
# up to 12 tokens are not penalized, because answers repeat names from the question.
_NO_LOOPS: dict[str, Any] = {
    "dry_multiplier": 0.8,
    "dry_base": 1.75,
    "dry_allowed_length": 12,
    "dry_penalty_last_n": 128,
}


class Llama:
    """A loaded GGUF model, optionally with a LoRA adapter.

    Args:
        path: The GGUF file.
        context: Context size in tokens.
        threads: Number of threads.
        adapter: GGUF file of a LoRA adapter. Default None.

    Raises:
        RuntimeError: llama.cpp cannot load the file or the adapter.
        ValueError: The file's header is damaged.
    """

    def __init__(self, path: Path, *, context: int, threads: int, adapter: Path | None = None) -> None:
        xllamacpp: Any = importlib.import_module("xllamacpp")

        vocabulary = read_vocabulary(path)  # this also detects a damaged header before llama.cpp does
        self.control = vocabulary.control
        self._split = vocabulary.splitter()
        self._context = context
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_parallel = 1
        params.kv_unified = False
        params.n_ctx = context
        params.n_gpu_layers = 0
        params.cache_ram_mib = 0  # otherwise, llama.cpp caches up to 8 GiB of prompts
        params.cache_idle_slots = False
        params.verbosity = -1
        if adapter is not None:
            params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(str(adapter))]
        for cpu in (params.cpuparams, params.cpuparams_batch):
            cpu.n_threads, cpu.poll = threads, 0  # busy-waiting is slow on a busy machine
        self.server = xllamacpp.Server(params)

    def spelled(self, text: str) -> tuple[str, int]:
        """Return a grammar that allows only this text, and the number of tokens needed to write it.

        The grammar uses the model's tokens if they are known. It cannot refer to a token that ends inside a character,
        so such characters are spelled out.
        """
        pieces = self._split(text)
        parts = [_gbnf_string(piece.text) if piece.token is None else f"<[{piece.token}]>" for piece in pieces]
        is_spelled = any(piece.token is None for piece in pieces)
        return "root ::= " + " ".join(parts), len(text.encode()) + 1 if is_spelled else len(
            parts
        )  # 1 for the end token

    def ask(self, **options: Any) -> dict[str, Any]:
        """Return the server's answer; raise an error if the context ended before the answer did."""
        answer: dict[str, Any] = self.server.handle_chat_completions(options)
        room = int(options["max_tokens"])
        error = answer.get("error")
        if error:
            if error.get("type") == "exceed_context_size_error":
                raise LMPromptTooLongError(int(error["n_prompt_tokens"]), self._context, room)
            raise LMInvalidRequestError(str(error.get("message", error)))
        usage = answer["usage"]
        if answer["choices"][0]["finish_reason"] == "length" and usage["completion_tokens"] < room:
            raise LMPromptTooLongError(int(usage["prompt_tokens"]), self._context, room)
        return answer


class Chat:
    """One request: the part of the answer written so far, and the number of tokens used.

    Args:
        llama: The model.
        messages: Role and content of each message; control tokens in them are broken up. If the last message is from
            the assistant, it is taken as the beginning of the answer.
        sampling: Sampling options, such as temperature and seed.
    """

    def __init__(self, llama: Llama, messages: Sequence[Mapping[str, str]], sampling: Mapping[str, Any]) -> None:
        self._llama = llama
        self._sampling = dict(sampling)
        self._messages = [{**m, "content": broken_up(m["content"], llama.control)} for m in messages]
        begins = bool(self._messages) and self._messages[-1]["role"] == "assistant"
        self.written = self._messages.pop()["content"] if begins else ""
        self.input_tokens = self.output_tokens = self.value_tokens = 0

    def write(self, max_tokens: int, *, json_object: bool = False) -> tuple[str, str]:
        """Generate any text, or any JSON object, and return it with the finish reason."""
        options: dict[str, Any] = {"response_format": {"type": "json_object"}} if json_object else {}
        text, answer = self._step("", max_tokens=max_tokens, **self._sampling, **options)
        return text, str(answer["choices"][0]["finish_reason"])

    def write_value(self, form: Form, max_tokens: int, *, taught: bool = False) -> str:
        """Generate one value, and return its JSON, which ``max_tokens`` may cut off.

        A trained model knows when to stop, and may repeat parts of the prompt on purpose, so repetition is not
        penalized.
        """
        grammar = "%llguidance {}\n" + form.grammar
        sampling = {**self._sampling, **_NO_LOOPS} if form.may_loop and not taught else self._sampling
        text, answer = self._step(form.opening, max_tokens=max_tokens, grammar=grammar, **sampling)
        self.value_tokens += int(answer["usage"]["completion_tokens"])
        return form.opening + text

    def likelihood(self, value: str, opening: str = "") -> float:
        """Return a value's mean log-probability per token, as a continuation of the answer so far and the opening."""
        grammar, room = self._llama.spelled(value)
        wanted = {"grammar": grammar, "max_tokens": room, "logprobs": True, "top_logprobs": 1, "temperature": 0.0}
        _, answer = self._step(opening, **wanted)
        # Skip the end token, which has no bytes, because its probability does not depend on the value.
        tokens = [token for token in answer["choices"][0]["logprobs"]["content"] if token["bytes"]]
        if bytes(byte for token in tokens for byte in token["bytes"]) != value.encode():
            raise LMProviderError(f"the model returned no log-probability for {value!r}")
        return float(sum(token["logprob"] for token in tokens) / len(tokens))

    def _step(self, opening: str, **options: Any) -> tuple[str, dict[str, Any]]:
        begun = broken_up(self.written + opening, self._llama.control)
        messages = [*self._messages, {"role": "assistant", "content": begun}] if begun else self._messages
        # The first step reads the whole prompt, because a prefix cached from a different chat would change rounding.
        answer = self._llama.ask(messages=messages, id_slot=0, cache_prompt=self.input_tokens > 0, **options)
        self.output_tokens += int(answer["usage"]["completion_tokens"])
        self.input_tokens = self.input_tokens or int(answer["usage"]["prompt_tokens"])
        # The server's answer repeats the text that it was asked to continue.
        return (answer["choices"][0]["message"]["content"] or "").removeprefix(begun), answer


def _gbnf_string(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'

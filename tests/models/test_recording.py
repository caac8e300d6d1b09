from __future__ import annotations

import gzip
import json

import dspy
import pytest

from querywright.errors import InputError, ModelError
from querywright.models.lm import resolve_lm
from querywright.models.recording import write_recording
from querywright.models.store import Store
from querywright.optimize.contexts import asking

QUESTION, OPTIONS = "Which part wears first?", ["Pads", "Rotor"]
SECRET = "sk-never-to-be-written"


class Name(dspy.Signature):
    """Name the thing."""

    clue: str = dspy.InputField()
    name: str = dspy.OutputField()


@pytest.fixture
def ask():
    def ask(lm, clue="It stops a car.", signature=Name, **config):
        with asking(lm):
            return dspy.Predict(signature)(clue=clue, config=config).name

    return ask


@pytest.fixture
def recorded(chat_server, tmp_path, ask):
    """A recording of two answers, and the server that gave them."""
    server = chat_server('{"name": "Brake"}', '{"name": "Wheel"}')
    store = Store(tmp_path / "store.sqlite")
    lm = resolve_lm("openai/large", api_base=server.url, api_key=SECRET, store=store)
    assert (ask(lm), ask(lm, "It turns.")) == ("Brake", "Wheel")
    path = tmp_path / "answers.jsonl.gz"
    assert write_recording(path, store, label="a large LM") == ("a large LM", 2, 0)
    return path, server


def test_a_recording_answers_what_was_asked_and_asks_nobody(recorded, ask):
    path, server = recorded
    lm = resolve_lm(f"recording:{path}")
    assert lm.model == "recording:a large LM"
    assert (ask(lm, "It turns."), ask(lm)) == ("Wheel", "Brake")
    assert server.count == 2
    cost = lm.engine.ledger.total
    assert (cost.calls, cost.tokens) == (2, 36)


def test_a_recording_holds_no_prompt_and_no_key(recorded):
    content = gzip.decompress(recorded[0].read_bytes()).decode()
    assert "Brake" in content
    assert not any(text in content for text in (SECRET, "stops a car", "Name the thing", "127.0.0.1"))


def test_the_same_answers_give_the_same_bytes(recorded, tmp_path, ask):
    path, _ = recorded
    store = Store(tmp_path / "replayed.sqlite")
    lm = resolve_lm(f"recording:{path}", store=store)
    assert (ask(lm, "It turns."), ask(lm)) == ("Wheel", "Brake")
    again = tmp_path / "again.jsonl.gz"
    write_recording(again, store, label="a large LM")
    assert again.read_bytes() == path.read_bytes()


def test_what_was_not_recorded_is_said_with_the_prompt_and_the_remedy(recorded, ask):
    name = f"recording:{recorded[0]}"
    said = r"no answer to this prompt.*flies.*different inputs\. Use the settings .* reader, and max_passages=\. .*--lm"
    with pytest.raises(ModelError, match=f"{said} embedded.*recording write"):
        ask(resolve_lm(name), "It flies.")
    with pytest.raises(ModelError, match=r"and max_passages= \(3 in this file\)"):
        ask(resolve_lm("recording:handbook"))
    with pytest.raises(ModelError, match="contains no prompt with these instructions"):
        ask(resolve_lm(name), signature=Name.with_instructions("Name the thing in one word."))


def test_draws_are_told_apart_by_their_seeds(chat_server, tmp_path, ask):
    server, store = chat_server('{"name": "one"}', '{"name": "two"}'), Store(tmp_path / "store.sqlite")
    lm = resolve_lm("openai/large", api_base=server.url, api_key=SECRET, store=store)
    drawn = [ask(lm, temperature=0.7, seed=seed) for seed in (1, 2)]
    write_recording(tmp_path / "draws.jsonl.gz", store)
    replayed = resolve_lm(f"recording:{tmp_path / 'draws.jsonl.gz'}")
    assert [ask(replayed, temperature=0.7, seed=seed) for seed in (1, 2)] == drawn == ["one", "two"]


def test_several_models_must_be_chosen_from(chat_server, tmp_path, ask):
    store, path = Store(tmp_path / "store.sqlite"), tmp_path / "answers.jsonl.gz"
    for name in ("writer", "judge"):
        server = chat_server(json.dumps({"name": name}))
        ask(resolve_lm(f"openai/{name}", api_base=server.url, api_key=SECRET, store=store), f"for {name}")
    with pytest.raises(InputError, match=r"several LMs: judge, writer; choose"):
        write_recording(path, store)
    with pytest.raises(InputError, match=r"no answers from reader, only from judge, writer"):
        write_recording(path, store, models=["reader"])
    assert write_recording(path, store, models=["writer", "judge"]) == ("writer and judge", 2, 0)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-9], lambda data: b"text", lambda data: gzip.compress(b'{"recording": 2}\n')]
)
def test_what_is_no_recording_is_refused_by_name(recorded, damage):
    path, _ = recorded
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=r"answers\.jsonl\.gz"):
        resolve_lm(f"recording:{path}")
    path.unlink()
    with pytest.raises(InputError, match=r"answers.*No such file"):
        resolve_lm(f"recording:{path}")


def test_an_answer_may_hold_any_character(chat_server, tmp_path, ask):
    odd = "one\u2028two\x85three\nfour"
    server, store = chat_server(json.dumps({"name": odd}, ensure_ascii=False)), Store(tmp_path / "store.sqlite")
    answered = ask(resolve_lm("openai/large", api_base=server.url, api_key=SECRET, store=store))
    path = tmp_path / "odd.jsonl.gz"
    write_recording(path, store)
    assert ask(resolve_lm(f"recording:{path}")) == answered


@pytest.mark.parametrize("label", ["sample", "<b>", "x" * 81])
def test_a_label_is_plain_and_not_that_of_the_packaged_one(recorded, tmp_path, label):
    store = Store(tmp_path / "store.sqlite")
    with pytest.raises(InputError, match=r"reserved for a packaged recording|use at most 80"):
        write_recording(tmp_path / "other.jsonl.gz", store, label=label)


def test_a_prompt_that_was_answered_twice_is_counted_and_has_one_answer(chat_server, tmp_path, ask):
    server, store = chat_server('{"name": "one"}', '{"name": "two"}'), Store(tmp_path / "store.sqlite")
    for most in (100, 200):
        ask(resolve_lm("openai/large", api_base=server.url, api_key=SECRET, store=store, max_tokens=most))
    path = tmp_path / "twice.jsonl.gz"
    assert write_recording(path, store)[1:] == (1, 1)
    assert ask(resolve_lm(f"recording:{path}")) in ("one", "two")

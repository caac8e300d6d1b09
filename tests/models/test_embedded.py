"""The embedded model and its file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from dspy import lm15
from dspy.utils.exceptions import LMInvalidRequestError
from pydantic import BaseModel, Field

from querywright.errors import PromptTooLongError
from querywright.models.constrained_decoding import Form
from querywright.models.embedded import EmbeddedEngine, EmbeddedSettings
from querywright.models.engine_errors import LMModelError
from querywright.models.gguf_files import packaged_file, read_vocabulary
from querywright.models.llama import Chat

QUESTION = "What should I do before I check my blood pressure?"
SETTINGS = EmbeddedSettings(context=1024, max_chars=40, max_items=3)
TEXT = {"type": "string"}
TEXTS = {"type": "array", "items": {"type": "string"}, "maxItems": 3}


@pytest.fixture(scope="module")
def made():
    engine = EmbeddedEngine(settings=SETTINGS)
    yield engine
    engine.close()


@pytest.fixture
def engine(made, working_folder):
    """The embedded model, loaded from the workspace of the first test that uses it."""
    if made._model is None:
        made.complete(request(max_tokens=1))
    return made


def request(schema: dict[str, Any] | None = None, text: str = QUESTION, **config: Any) -> lm15.Request:
    if schema is not None:
        config["response_format"] = {"type": "json_schema", "schema": schema}
    return lm15.Request(
        model="m",
        system="Answer the question.",
        messages=(lm15.Message.user(text),),
        config=lm15.Config(**config),
    )


def object_of(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields}


def filled(engine: EmbeddedEngine, text: str = QUESTION, /, max_tokens: int = 200, **fields: Any) -> dict[str, Any]:
    return json.loads(engine.complete(request(object_of(**fields), text, max_tokens=max_tokens)).text)


ODD = [
    'say "yes"',
    "two\nlines",
    "C:\\temp\\",
    "한국어로 말한다",
    "naïve café ✓",
    "tab\there",
    "x" * 500,
    "{a}",
    " ",
    "",
]


@pytest.mark.parametrize(
    "options",
    [["run", "sit upright", "drink water", "a"], pytest.param(ODD, marks=pytest.mark.slow)],
    ids=["plain", "odd"],
)
def test_a_choice_is_the_likeliest_of_its_values(engine, options):
    chosen = filled(engine, answer={"enum": options})["answer"]
    said = [("system", "Answer the question."), ("user", QUESTION), ("assistant", '{"answer": "')]
    chat = Chat(engine._model, [{"role": role, "content": content} for role, content in said], {})
    scores = [chat.likelihood(json.dumps(option, ensure_ascii=False)[1:-1] or '"') for option in options]
    assert all(score < 0 for score in scores)
    assert len(set(scores)) == len(scores)
    assert chosen == options[scores.index(max(scores))]


@pytest.mark.parametrize(
    ("field", "allowed"),
    [
        ({"type": "boolean"}, [True, False]),
        ({"enum": [1, 2, 3]}, [1, 2, 3]),
        ({"enum": ["1", 2, None]}, ["1", 2, None]),
        ({"type": "integer", "minimum": 1, "maximum": 5}, [1, 2, 3, 4, 5]),
        ({"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}]}, ["a", "b", None]),
        ({"$ref": "#/$defs/Label"}, ["ENTAILED", "USEFUL"]),
    ],
)
def test_fields_with_few_values_are_choices(engine, field, allowed):
    schema = {**object_of(answer=field), "$defs": {"Label": {"enum": ["ENTAILED", "USEFUL"]}}}
    response = engine.complete(request(schema))
    answer = json.loads(response.text)["answer"]
    assert any(answer is value or (answer == value and type(answer) is type(value)) for value in allowed)
    assert response.finish_reason == "stop"


def test_texts_and_lists_keep_their_limits(engine):
    out = filled(
        engine,
        "Tell me all about the history of tea, at length.",
        text=TEXT,
        short={"type": "string", "maxLength": 12},
        words={"type": "array", "items": {"type": "string", "maxLength": 15}},
        pair={"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2},
        one={"type": "array", "items": {"type": "string"}, "maxItems": 1},
    )
    assert 0 < len(out["text"]) <= 40
    assert 0 < len(out["short"]) <= 12
    assert 1 <= len(out["words"]) <= 3
    assert all(0 < len(word) <= 15 for word in out["words"])
    assert (len(out["pair"]), len(out["one"])) == (2, 1)
    assert all(text == text.strip() for text in (out["text"], out["short"], *out["words"]))


class Inner(BaseModel):
    name: str
    size: float


class Nested(BaseModel):
    inner: Inner
    many: list[Inner] = Field(max_length=2)
    numbers: list[int]
    maybe: str | None
    count: int
    share: float = Field(ge=0, le=1)


def test_numbers_and_nested_objects_follow_their_schema(engine):
    response = engine.complete(request(Nested.model_json_schema(), max_tokens=400))
    value = Nested.model_validate_json(response.text)
    assert response.finish_reason == "stop"
    assert len(value.numbers) <= 3
    assert len(value.inner.name) <= 40


@pytest.mark.parametrize("max_tokens", [1, 20])
def test_a_value_that_is_cut_off_is_valid_json_and_said_to_be_cut(engine, max_tokens):
    long = {"type": "string", "maxLength": 900}
    nested = {"type": "object", "properties": {"a": long}, "required": ["a"]}
    fields = object_of(text=long, words={"type": "array", "items": long}, nested=nested)
    response = engine.complete(request(fields, "Write a very long story about the sea.", max_tokens=max_tokens))
    out = json.loads(response.text)
    assert response.finish_reason == "length"
    assert list(out) == ["text", "words", "nested"]
    assert len(out["text"]) > 10
    assert out["words"]
    assert response.usage.output_tokens <= max_tokens + 3 * 16


def test_free_text_and_free_json(engine):
    text = engine.complete(request(max_tokens=12))
    assert (text.finish_reason, text.usage.output_tokens) == ("length", 12)
    assert 10 < len(text.text) < 200
    wanted = {"max_tokens": 60, "response_format": {"type": "json_object"}}
    assert engine.complete(request(None, "A JSON object with a name.", **wanted)).text.lstrip().startswith("{")
    stopped = engine.complete(request(max_tokens=40, stop=(" ",)))
    assert (stopped.finish_reason, " " in stopped.text.strip()) == ("stop", False)


def test_a_format_without_properties_is_refused(engine):
    with pytest.raises(LMInvalidRequestError, match="a JSON object schema with named properties"):
        engine.complete(request({"type": "array", "items": {"type": "string"}}))


CASES = [
    request(
        object_of(answer={"enum": ["warm", "cold", "round"]}, facts={"type": "array", "items": {"type": "string"}}),
        f"Write facts about {topic}. {'Keep them short. ' * (number % 3)}",
        max_tokens=60,
    )
    for number, topic in enumerate(["the sun", "ice", "a football", "tea", "snow", "coins"])
]


@pytest.mark.slow
def test_answers_do_not_depend_on_threads_order_place_or_engine(engine, model_files):
    serial = [engine.complete(case).text for case in CASES]
    with ThreadPoolExecutor(16) as pool:
        at_once = list(pool.map(lambda case: engine.complete(case).text, reversed(CASES)))[::-1]
    path = next(model_files.glob("*.gguf"))
    other = EmbeddedEngine(path, SETTINGS)
    assert other.identity.startswith(f"gguf:{path.name}@")
    assert serial == at_once == [other.complete(case).text for case in reversed(CASES)][::-1]
    assert len(set(serial)) == len(CASES)
    other.close()
    assert other.complete(CASES[0]).text == serial[0], "it is loaded again"


def test_samples_depend_on_their_seed(engine):
    def sample(**config):
        return engine.complete(request(text="Name something.", max_tokens=16, temperature=1.5, **config)).text

    assert sample(seed=1) == sample(seed=1)
    assert len({sample(seed=number) for number in range(4)}) > 1
    assert sample() == sample(seed=0)


def test_a_prompt_that_is_too_long_is_refused_at_once_with_both_sizes(engine):
    with pytest.raises(PromptTooLongError, match="but the model's context has 1024") as caught:
        engine.complete(request(text="w " * 3000, max_tokens=7))
    assert caught.value.n_tokens > 3000
    assert (caught.value.n_context, caught.value.n_answer) == (1024, 7)


@pytest.mark.slow
def test_an_answer_is_never_cut_by_the_end_of_the_context():
    engine = EmbeddedEngine(settings=EmbeddedSettings(context=256))
    long = "word " * 200
    many = {"type": "array", "items": {"type": "string"}, "minItems": 40, "maxItems": 40}
    with pytest.raises(PromptTooLongError) as caught:
        engine.complete(request(object_of(answer=many), long, max_tokens=500))
    assert 200 < caught.value.n_tokens < 256
    with pytest.raises(PromptTooLongError):
        engine.complete(request(object_of(answer={"enum": ["y n " * 40, "n y " * 40]}), long))
    # A prompt that fits is answered, whatever the limit of tokens is.
    assert filled(engine, long, max_tokens=500, answer={"enum": ["yes", "no"]})["answer"] in {"yes", "no"}


def test_control_tokens_in_a_text_or_a_choice_are_plain_text(engine):
    plain, tokens = (engine.complete(request(text=text, max_tokens=1)).usage for text in ("x", "<|im_end|>"))
    assert tokens.input_tokens > plain.input_tokens  # one control token would count as one token, like the x
    options = ["end <|im_end|> now", "<|im_start|>assistant"]
    out = filled(engine, answer={"enum": options}, why=TEXT, list=TEXTS)
    assert out["answer"] in options
    assert out["why"]
    assert not out["why"].startswith(("{", "answer"))


@pytest.mark.parametrize("kept", [4, 5000, 50_000_000], ids=["magic", "header", "weights"])
def test_a_damaged_file_is_an_error_and_no_crash(engine, tmp_path, model_files, kept):
    path = tmp_path / "damaged.gguf"
    with next(model_files.glob("*.gguf")).open("rb") as file:
        path.write_bytes(file.read(kept))
    with pytest.raises(LMModelError, match=r"cannot load damaged\.gguf as a GGUF model.*download it again"):
        EmbeddedEngine(path).complete(request())


SCRIPT = """
import sys, threading, time
from dspy import lm15
from querywright.models.embedded import EmbeddedEngine, EmbeddedSettings
engine = EmbeddedEngine(settings=EmbeddedSettings(context=512))
ask = lambda n: engine.complete(lm15.Request(model="m", messages=(lm15.Message.user("Tell a story."),),
                                             config=lm15.Config(max_tokens=n))).text
assert ask(3)
if "busy" in sys.argv:
    threading.Thread(target=ask, args=(150,), daemon=True).start()
    time.sleep(0.3)
if "error" in sys.argv:
    raise SystemExit(7)
print("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "code"), [("busy", 0), ("error", 7)])
def test_the_process_ends_quietly_and_soon(mode, code):
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", SCRIPT, mode]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (code, "")
    assert done.stdout == ("" if code else "done\n")


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # fork beside threads is what is tested
def test_a_forked_process_gets_an_error_and_does_not_hang(engine):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            engine.complete(request(max_tokens=2))
            os.write(writer, b"answered")
        except LMModelError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    deadline = time.monotonic() + 60
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, 9)
        time.sleep(0.01)
    with os.fdopen(reader, "rb") as pipe:
        assert b"start processes with the 'spawn' method" in pipe.read()


@pytest.mark.parametrize(
    ("field", "after", "text", "read"),
    [
        (TEXT, ",", '"one, two,",', ("one, two,", True)),
        (TEXT, "}", '"one"', ("one", True)),
        (TEXTS, "}", '["one}", "two"]}', (["one}", "two"], True)),
        (TEXTS, ",", '["one"]', (["one"], True)),
        (TEXT, ",", '"one,', ("one,", False)),
    ],
)
def test_what_follows_is_no_part_of_the_value(field, after, text, read):
    assert Form(field, {}, 40, 3, after=after).read(text) == read


def test_texts_are_split_as_the_model_was_trained_to():
    split = read_vocabulary(packaged_file()).splitter()
    assert [piece.text for piece in split("sit upright for 15 minutes")] == [
        "sit", " upright", " for", " ", "1", "5", " minutes"
    ]  # fmt: skip
    assert all(piece.token is not None for piece in split("café"))
    for text in ("한국어로 말한다", "👩‍⚕️ ok", 'a "b"\\n', " ", ""):
        assert "".join(piece.text for piece in split(text)) == text
    assert [piece.token is None for piece in split("a한b")] == [False, True, False]

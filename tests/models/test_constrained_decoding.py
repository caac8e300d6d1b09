"""The end of a value, where a model has one token for it and for what follows."""

from __future__ import annotations

import pytest

from querywright.models.constrained_decoding import Form
from querywright.models.embedded import packaged_file
from querywright.models.hf import load_tokenizer
from querywright.models.llama import start_llama

TEXT = {"type": "string"}
TEXTS = {"type": "array", "items": {"type": "string"}, "maxItems": 3}


@pytest.fixture(scope="module")
def llama():
    return start_llama(packaged_file(), context=512, parallel=1, threads=1, poll=0)


@pytest.mark.parametrize(
    ("field", "after", "token", "ending"),
    [(TEXT, "}", '"}', '"}'), (TEXT, ",", '",', '",'), (TEXTS, ",", '"],', '"],')],
)
def test_a_value_may_end_with_the_token_that_also_goes_on(llama, field, after, token, ending):
    tokenizer = load_tokenizer()
    (number,) = tokenizer(token, add_special_tokens=False).input_ids
    wanted = {"temperature": 0.0, "logit_bias": [[number, 100.0]]}  # a model that is certain of that token
    written = {}
    for allowed in ("", after):
        form = Form(field, {}, 40, 3, after=allowed)
        with llama.chat([{"role": "user", "content": "Name a fruit."}], wanted) as chat:
            chat.written = '{"query": '
            written[allowed] = form, chat.write_value(form, 40)
    form, text = written[after]
    assert text.endswith(ending)
    assert not written[""][1].endswith(ending)
    value, whole = form.read(text)
    assert whole
    assert not str(value).endswith(('"', after, ending))


@pytest.mark.parametrize(
    ("field", "after", "text", "value"),
    [
        (TEXT, ",", '"one, two,",', "one, two,"),
        (TEXT, "}", '"one"', "one"),
        (TEXTS, "}", '["one}", "two"]}', ["one}", "two"]),
        (TEXTS, ",", '["one"]', ["one"]),
    ],
)
def test_what_follows_is_no_part_of_the_value(field, after, text, value):
    assert Form(field, {}, 40, 3, after=after).read(text) == (value, True)


def test_a_value_that_was_cut_off_keeps_its_comma():
    assert Form(TEXT, {}, 40, 3, after=",").read('"one,') == ("one,", False)

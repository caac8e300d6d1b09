from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from querywright.errors import InputError
from querywright.models.circuit_breaker import Limits
from querywright.optimize.search.spec import KnobRange
from querywright.optimize.study.spec import StudySpec, read_spec, spec_differences, write_spec

GOOD = """
name: mine
questions: sample
collection: papers
techniques:
  hcqr:
    engines: [dense, hybrid]
    knobs:
      top_k: [3, 5, 10]
      n_queries: {low: 1, high: 3}
      gate: off
  plain: {}
sizes: [6, 6, 6]
budget: {dollars: 1e-3}
"""


def refused(text_or_data, tmp_path=None):
    source = text_or_data
    if tmp_path is not None:
        source = tmp_path / "study.yaml"
        source.write_text(text_or_data, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_spec(source)
    return str(caught.value)


def of(techniques=None, **changes):
    base = {
        "name": "s",
        "questions": "sample",
        "collection": "c",
        "techniques": {"hcqr": {}} if techniques is None else techniques,
    }
    return {**base, **changes}


def test_a_file_is_read_with_off_as_a_word_and_1e_3_as_a_number(tmp_path):
    file = tmp_path / "study.yaml"
    file.write_text(GOOD)
    spec = read_spec(file)
    assert spec.techniques["hcqr"].knobs["gate"] == "off"
    assert spec.techniques["hcqr"].knobs["top_k"] == [3, 5, 10]
    assert spec.techniques["hcqr"].knobs["n_queries"] == KnobRange(low=1, high=3)
    assert spec.budget.dollars == 0.001
    assert spec.sizes == (6, 6, 6)


def test_the_collection_is_the_first_retriever_unless_it_is_named():
    retrievers = {"small": "cards-128", "large": "cards-512"}
    named = {key: value for key, value in of(retrievers=retrievers).items() if key != "collection"}
    assert read_spec(named).collection == "cards-128"
    assert read_spec(of(retrievers=retrievers)).collection == "c"
    with pytest.raises(InputError, match="collection: is missing"):
        read_spec({**named, "retrievers": {}})
    with pytest.raises(InputError, match=r"must be a mapping from names .* write engines under a technique"):
        read_spec(of(retrievers=["dense", "hybrid"]))


def test_what_is_written_is_read_again_as_the_same(tmp_path):
    file = tmp_path / "study.yaml"
    file.write_text(GOOD)
    spec = read_spec(file)
    write_spec(spec, tmp_path / "again.yaml")
    assert not set("&*") & set((tmp_path / "again.yaml").read_text())  # a value that stands twice is written out twice
    assert read_spec(tmp_path / "again.yaml") == spec
    assert read_spec(spec.to_json()) == spec
    assert list(read_spec(tmp_path / "again.yaml").techniques) == ["plain", "hcqr"]


def test_all_that_is_wrong_with_the_parts_is_said_at_once():
    said = refused(
        {
            "name": "a b",
            "questions": 3,
            "colection": "c",
            "techniques": {
                "rag_fuson": {},
                "mine.py:Own": {},
                "hcqr": {"search": "some", "knobs": {"n_queries": {"low": "a", "hihg": 3}}},
            },
            "objectives": ["acuracy"],
            "sampler": {"name": "tpee"},
            "trials": "5",
        }
    )
    for part in (
        "name: string should match pattern",
        "questions: input should be a valid string, but got 3",
        "collection: is missing",
        "colection: unknown key 'colection' (did you mean collection?)",
        "techniques.rag_fuson: unknown technique 'rag_fuson' (did you mean rag_fusion?)",
        "techniques.mine.py:Own: cannot import the program 'mine.py:Own': there is no file 'mine.py'",
        "techniques.hcqr.search: input should be 'all' or 'named', but got \"some\"; 'all' searches every searchable",
        'techniques.hcqr.knobs.n_queries.low: input should be a valid number, but got "a"',
        "techniques.hcqr.knobs.n_queries.high: is missing",
        "techniques.hcqr.knobs.n_queries.hihg: unknown key 'hihg' (did you mean high?)",
        "objectives.0: unknown objective 'acuracy' (did you mean accuracy?)",
        "sampler: unknown sampler 'tpee' (did you mean tpe?)",
        'trials: input should be a valid integer, but got "5"',
    ):
        assert part in said
    assert "the study has 13 problems" in said


def test_all_that_does_not_fit_together_is_said_at_once():
    knobs = {"top_k": [3, 500], "fusion": "rff", "topk": 3}
    techniques = {"hcqr": {"knobs": knobs, "engines": ["bm26"]}, "hyde": {"engines": ["dense", "questions", "bm25"]}}
    said = refused(of(techniques, reader="none", objectives=["accuracy"]))
    for part in (
        "techniques.hcqr.knobs.top_k: top_k must be a whole number from 1 to 50, but got 500",
        "techniques.hcqr.knobs.fusion: fusion must be one of interleave",
        "techniques.hcqr.knobs.topk: unknown knob of hcqr 'topk' (did you mean top_k?)",
        "techniques.hyde.engines: got 'bm25', but the engine must be dense or questions, because hyde searches with",
        "techniques.hcqr.engines.0: unknown engine 'bm26' (did you mean bm25?)",
        "objectives.0: accuracy requires a reader",
    ):
        assert part in said


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("name: a\nname: b\n", "line 2, column 1: not valid YAML: the key name occurs twice, on lines 1 and 2"),
        ("name: !!python/object/apply:os.system ['true']\n", "constructor for the tag"),
        ("name: [a\n", "not valid YAML"),
        ("", "must be a mapping"),
        ("1: a\n", "1: keys should be strings"),
        ("name: " + "[" * 1500 + "\n", "recursion depth"),
    ],
)
def test_what_is_more_or_less_than_data_is_refused(tmp_path, text, part):
    assert part in refused(text, tmp_path)


def test_a_file_that_is_no_text_or_not_there(tmp_path):
    file = tmp_path / "study.yaml"
    file.write_bytes(b"name: \xff\xfe")
    with pytest.raises(InputError, match=r"study\.yaml: not valid YAML: 'utf-8'"):
        read_spec(file)
    for path in (tmp_path / "other.yaml", tmp_path):
        with pytest.raises(InputError, match="cannot read"):
            read_spec(path)


def test_the_budget_of_all_arms_is_5_passages_unless_it_is_given_or_given_up():
    assert read_spec(of()).fixed == {"max_passages": 5}
    assert read_spec(of(fixed={"top_k": 3})).fixed == {"max_passages": 5, "top_k": 3}
    assert read_spec(of({"hcqr": {"knobs": {"max_passages": [3, 5]}}}, fixed={})).fixed == {}


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (of({"closed_book": {}}), "retrieves no passages"),
        (of({"qb_rag": {"engines": ["dense"]}}), "must be questions, the only engine"),
        (
            of({"hcqr": {"engines": ["bm25"], "knobs": {"gate": "score"}}}),
            "requires an engine with cosine similarities",
        ),
        (of({"hcqr": {"knobs": {"top_k": [3]}}}, fixed={"top_k": 3}), "is also set under fixed"),
        (of({"hcqr": {"knobs": {"top_k": [3, 3]}}}), "twice"),
        (of({"hcqr": {"knobs": {"top_k": {"low": 5, "high": 5}}}}), "low must be less"),
        (of({"hcqr": {"knobs": {"top_k": {"low": 1, "high": 9, "step": 0}}}}), "step must be"),
        (of({"hcqr": {"knobs": {"top_k": {"low": 1, "high": 99}}}}), "high: top_k must be"),
        (of({"hcqr": {"knobs": {"fusion": {"low": 1, "high": 2}}}}), "this knob is not numeric"),
        (of({"hcqr": {"knobs": {"top_k": None}}}), "must be a value, a list of values, or a range"),
        (
            of({"plain": {"knobs": {"query_with_options": True}}}),
            "the baseline requires query_with_options=False; add this value",
        ),
        (of(fixed={"query_with_options": True}), "the baseline requires"),
        (of(fixed={"topk": 3}), "fixed.topk: unknown knob of these techniques 'topk' (did you mean top_k?)"),
        (of(reader="multiple"), "unknown reader 'multiple' (did you mean multiple_choice?)"),
        (of(reader=["grounded"]), "reader: input should be a valid string"),
        (of(objectives=["lm_calls", "accuracy"]), "must be a quality metric"),
        (of(objectives=["accuracy", "accuracy"]), "occurs twice"),
        (of(sampler={"name": "tpe", "arguments": {"seed": 3}}), "keyword argument 'seed'"),
        (of(sampler={"name": "nsga2", "arguments": {"population_size": 1}}), "does not accept these arguments"),
        (of(trials=1), "trials: must be at least 2"),
        (
            of(each_prompt=True, trials=2, prompts={"few": {"optimizer": "bootstrap_few_shot"}}),
            "3 trials cover all techniques and prompts",
        ),
        (of(prompts={"a.1": {"optimizer": "mipro"}}), "prompts.a.1: string should match pattern"),
        (
            of(prompts={"untuned": {"optimizer": "mipro"}}),
            "prompts.untuned: 'untuned' is the name of the default prompts",
        ),
    ],
)
def test_what_cannot_be_run_is_refused_where_it_stands(data, part):
    assert part in refused(data)


@pytest.mark.parametrize(
    "address", ["postgresql://me:sesame@host/db", "postgresql://me:sesame/with@signs@host/db", "//me:sesame@host/v1"]
)
def test_a_password_is_never_repeated(address):
    for key in ("storage", "api_base"):
        said = refused(of(**{key: address}))
        assert "must not contain a password" in said
        assert "sesame" not in said
    assert "may include an API key" in refused(of(api_base="https://host/v1?key=sesame"))
    assert read_spec(of(storage="postgresql://me@host/db")).storage == "postgresql://me@host/db"
    assert read_spec(of(api_base="http://localhost:8000/v1/@me/x")).api_base == "http://localhost:8000/v1/@me/x"


@pytest.mark.parametrize(
    ("prompt", "part"),
    [
        ({}, "must have an optimizer or instructions"),
        ({"optimizer": "cheap", "last": True}, "set part: reader"),
        ({"optimizer": "cheap", "metric": "speed"}, "unknown metric 'speed'"),
        ({"optimizer": "ensemble", "part": "reader", "last": True}, "changes the structure"),
        ({"optimizer": "chep"}, "unknown optimizer 'chep' (did you mean cheap?)"),
        ({"optimizer": "cheap", "arguments": {"k": 0}}, "k must be a whole number from 1"),
        ({"optimizer": "cheap", "part": "reader"}, "no objective needs a reader"),
        ({"instructions": {"technique.write_querys": "x"}}, "did you mean technique.write_queries?"),
    ],
)
def test_prompts_that_cannot_be_made_are_refused(optimizers, prompt, part):
    assert part in refused(of(prompts={"mine": prompt}))


def test_prompts_that_a_technique_names(optimizers):
    prompts = {"mine": {"optimizer": "cheap"}}
    assert "unknown prompt 'mien'" in refused(of({"hcqr": {"prompts": ["mien"]}}, prompts=prompts))
    said = refused(of({"hcqr": {}, "plain": {"prompts": ["mine"]}}, prompts=prompts))
    assert "'mine' cannot be used: plain does not call an LM" in said
    assert "cannot be used by any of the techniques" in refused(of({"plain": {}}, prompts=prompts))
    last = {"mine": {"optimizer": "cheap", "part": "reader", "last": True}}
    assert "is tried last for every technique" in refused(of({"hcqr": {"prompts": ["mine"]}}, prompts=last))


def test_only_what_changes_results_is_a_difference():
    old = read_spec(of({"hcqr": {"knobs": {"top_k": [3, 5]}}}, trials=10))
    free = old.model_copy(
        update={"trials": 20, "threads": 9, "storage": "postgresql://h/d", "max_failures": 0.5, "api_key_env": "KEY"}
        | {"timeout": 600.0, "max_unreadable": 0.5}
    )
    assert (old.limits, free.limits) == (Limits(), Limits(timeout=600.0, max_unreadable=0.5, at_once=9))
    assert spec_differences(old, free) == []
    new = read_spec(of({"hcqr": {"knobs": {"top_k": [3, 5, 10]}}, "hyde": {}}, trials=8, seed=1))
    techniques, *others = spec_differences(old, new)
    assert techniques.startswith("techniques")
    assert others == ["seed changed from 0 to 1", "trials can only increase, but changed from 10 to 8"]
    turned = read_spec(of({"hyde": {}, "hcqr": {}})), read_spec(of({"hcqr": {}, "hyde": {}}))
    assert len(spec_differences(*turned)) == 1


LEAF = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
DATA = LEAF | st.lists(LEAF, max_size=3) | st.dictionaries(st.text(max_size=8), LEAF | st.lists(LEAF), max_size=3)


@settings(max_examples=10)
@given(DATA, st.sampled_from(sorted(StudySpec.model_fields)))
def test_whatever_stands_under_a_key_is_read_or_refused(value, key):
    try:
        spec = read_spec(of(**{key: value}))
    except InputError:
        return
    assert read_spec(spec.to_json()) == spec

from __future__ import annotations

import optuna
import pytest

from querywright.errors import InputError
from querywright.optimize.search.sampling import make_sampler
from querywright.optimize.search.space import build_space
from querywright.optimize.search.trials import ArmConfig
from querywright.programs import TECHNIQUES, technique_class
from querywright.programs.hyperparameters import Knob

optuna.logging.set_verbosity(optuna.logging.ERROR)
SEARCHED = [name for name in TECHNIQUES if name not in {"closed_book", "plain"}]
PROMPTS = {"few": {"optimizer": "cheap"}, "more": {"optimizer": "cheap"}, "best": {"optimizer": "dear"}}


def study_with(space, sampler="tpe", seed=0, storage=None, **arguments):
    made = make_sampler(sampler, arguments, seed)
    return optuna.create_study(direction="maximize", sampler=made, storage=storage)


def worth(arm):
    return arm.knobs.get("top_k", 0) + (arm.engine == "hybrid") + len(arm.prompt) / 100


def arms_of(study, space, count, value=worth):
    arms = []
    for _ in range(count):
        trial = study.ask()
        arms.append(space.suggest(trial, trial.number))
        study.tell(trial, value(arms[-1]))
    return arms


@pytest.fixture
def mixed(study_of, optimizers):
    """Two techniques with prompts, one of which names its own."""
    hcqr = {"engines": ["dense", "hybrid"], "knobs": {"top_k": [3, 5, 10]}}
    fusion = {"knobs": {"n_queries": {"low": 2, "high": 8, "step": 3}}, "prompts": ["few", "more"]}
    spec = study_of({"hcqr": hcqr, "rag_fusion": fusion}, prompts=PROMPTS, trials=24, seed=3)
    return build_space(spec, "multiple_choice")


@pytest.mark.parametrize("technique", SEARCHED)
def test_every_arm_is_allowed_and_complete(technique, study_of):
    space = build_space(study_of({technique: {}}, trials=12), "short_answer")
    for arm in arms_of(study_with(space, "random"), space, 12):
        made = technique_class(arm.technique)(None, **arm.knobs)
        assert dict(made.knobs) == dict(arm.knobs)
        assert (arm.knobs["max_passages"], arm.reader) == (5, "short_answer")
        assert ArmConfig.from_json(arm.to_json()) == arm


def test_the_first_trials_are_the_untuned_techniques_baseline_first(mixed):
    arms = arms_of(study_with(mixed), mixed, 3)
    assert arms == [mixed.untuned(name) for name in ("plain", "hcqr", "rag_fusion")]
    assert (arms[0].technique, arms[0].engine) == ("plain", "dense")
    assert (arms[1].engine, arms[1].prompt, arms[1].knobs["top_k"]) == ("dense", "untuned", 5)
    assert arms[2].knobs["n_queries"] == 5  # 4 is its default, and no value of the space
    assert arms[2].knobs["top_k"] == technique_class("rag_fusion")(None).knobs["top_k"]


def test_a_technique_chooses_from_all_prompts_or_from_those_that_it_names(mixed):
    assert mixed["hcqr"].prompts == ("untuned", "few", "more", "best")
    assert (mixed["rag_fusion"].prompts, mixed["plain"].prompts) == (("untuned", "few", "more"), ("untuned",))
    arms = arms_of(study_with(mixed, "random"), mixed, 24)
    assert {arm.prompt for arm in arms if arm.technique == "hcqr"} == {"untuned", "few", "more", "best"}
    assert [arm.technique for arm in arms].count("plain") == 1  # it has a single arm, which was tried first


def test_the_baseline_is_searched_if_it_is_named(study_of):
    space = build_space(study_of({"plain": {"engines": ["bm25"]}, "hcqr": {}}, trials=40), None)
    arms = arms_of(study_with(space, "random"), space, 40)
    assert {arm.engine for arm in arms if arm.technique == "plain"} == {"dense", "bm25"}
    assert (arms[0].technique, arms[0].engine) == ("plain", "dense")


@pytest.mark.parametrize("sampler", ["tpe", "random", "nsga2"])
def test_a_study_cut_at_any_trial_goes_on_as_if_nothing_had_happened(sampler, study_of, optimizers):
    knobs = {"hcqr": {"engines": ["dense", "hybrid"], "search": "named", "knobs": {"top_k": [3, 5, 10, 20]}}}
    space = build_space(study_of(knobs, prompts=PROMPTS, trials=16), None)
    options = {"n_startup_trials": 3} if sampler == "tpe" else {}
    whole = arms_of(study_with(space, sampler, 5, **options), space, 16)
    for cut in (0, 6, 9, 15):
        storage = optuna.storages.InMemoryStorage()
        study = study_with(space, sampler, 5, storage, **options)
        arms = arms_of(study, space, cut)
        left = study.ask()  # its worker dies
        anew = make_sampler(sampler, options, 5)
        again = optuna.load_study(study_name=study.study_name, storage=storage, sampler=anew)
        trial = optuna.trial.Trial(again, left._trial_id)
        arms.append(space.suggest(trial, trial.number))
        again.tell(trial, worth(arms[-1]))
        arms += arms_of(again, space, 15 - cut)
        assert arms == whole


def test_what_is_fixed_is_not_searched_and_reaches_those_that_have_it(study_of):
    spec = study_of({"hcqr": {}, "hyde": {}}, fixed={"max_passages": 7, "top_k": 9, "n_documents": 2}, trials=12)
    space = build_space(spec, None)
    for arm in arms_of(study_with(space, "random"), space, 12):
        assert arm.knobs["max_passages"] == 7
        assert arm.knobs.get("top_k", 9) == 9
        assert arm.knobs.get("n_documents", 2) == 2
        assert ("top_k" in arm.knobs) == (arm.technique == "hcqr")
    named = {"search": "named", "knobs": {"top_k": [3, 5], "n_queries": 2}}
    space = build_space(study_of({"hcqr": named}), None)
    assert set(space["hcqr"].domains) == {"top_k"}
    assert space["hcqr"].given["n_queries"] == 2


@pytest.mark.parametrize("technique", SEARCHED)
@pytest.mark.parametrize("values", [[3, 9], {"low": 3, "high": 9}])
def test_every_technique_may_search_its_budget_beside_a_baseline_with_the_fixed_one(technique, values, study_of):
    spec = study_of({technique: {"search": "named", "knobs": {"max_passages": values}}}, fixed={"max_passages": 7})
    space = build_space(spec, None)
    assert set(space[technique].domains) == {"max_passages"}
    assert space["plain"].given["max_passages"] == 7
    arms = arms_of(study_with(space, "random"), space, 12)
    assert {arm.knobs["max_passages"] for arm in arms if arm.technique == technique} >= {3, 9} & set(values)


def test_union_is_no_choice_if_the_first_list_fills_the_budget(study_of):
    knobs = {"search": "named", "knobs": {"top_k": [2, 5, 9], "fusion": ["union", "interleave", "rrf"]}}
    space = build_space(study_of({"multi_query": knobs}), None)
    tried = [arm for arm in arms_of(study_with(space, "random"), space, 40) if arm.technique == "multi_query"]
    assert {(arm.knobs["top_k"] < 5, arm.knobs["fusion"]) for arm in tried} == {
        (True, "union"), (True, "interleave"), (True, "rrf"), (False, "interleave"), (False, "rrf")
    }  # fmt: skip


def test_a_retriever_may_narrow_the_knobs(study_of):
    narrow = {"qb_rag": [Knob("match", "nearest", "how", choices=("nearest",))]}
    assert "match" in build_space(study_of({"qb_rag": {}}), None)["qb_rag"].domains
    assert build_space(study_of({"qb_rag": {}}), None, narrow)["qb_rag"].domains["match"].single()
    with pytest.raises(InputError, match="match must be nearest"):
        build_space(study_of({"qb_rag": {"knobs": {"match": ["nearest", "hybrid"]}}}), None, narrow)


@pytest.mark.parametrize(("technique", "knob"), [("rag_fusion", "n_queries"), ("decomposition", "n_sub_questions")])
def test_smaller_numbers_of_queries_are_the_first_of_the_largest(technique, knob, study_of):
    space = build_space(study_of({technique: {"knobs": {knob: [2, 3, 6]}}}, trials=12), None)
    arms = arms_of(study_with(space, "random"), space, 12)
    assert {arm.knobs["n_written"] for arm in arms if arm.technique == technique} == {6}
    assert {arm.knobs[knob] for arm in arms if arm.technique == technique} == {2, 3, 6}
    assert "n_written" not in space[technique].domains
    for knobs, written in (({knob: 3}, 0), ({knob: [2, 3], "n_written": 5}, 5)):
        assert build_space(study_of({technique: {"knobs": knobs}}), None)[technique].given["n_written"] == written

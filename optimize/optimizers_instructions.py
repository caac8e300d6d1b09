"""Optimizers that write instructions: COPRO, MIPROv2, SIMBA and GEPA."""

from __future__ import annotations

from typing import Any

import dspy
from dspy.utils.exceptions import AdapterParseError, LMError

from querywright.models.adapter import PromptAdapter
from querywright.optimize.optimizer_run import Work
from querywright.programs import RAG


def copro(work: Work) -> RAG:
    """DSPy's ``COPRO``: instructions proposed by the LM and scored on all training questions."""
    with work.watched(work.score) as metric:
        optimizer = dspy.COPRO(metric=metric, **work.given("breadth", "depth", "init_temperature"))
        quietly = {"num_threads": work.threads, "display_progress": False, "display_table": 0}
        tuned = optimizer.compile(work.student(), trainset=work.examples(), eval_kwargs=quietly)
    return work.with_prompts_of(tuned)


def mipro(work: Work) -> RAG:
    """DSPy's ``MIPROv2``: instructions and demonstrations chosen together; nothing is written to a disk."""
    train, valid = work.learn_and_choose()
    batch = min(int(work.arguments["minibatch_size"]), len(valid))
    proposing = ("program_aware_proposer", "data_aware_proposer", "tip_aware_proposer", "fewshot_aware_proposer")
    with work.watched(work.scores_or_accepts) as metric:
        optimizer = dspy.MIPROv2(
            metric=metric,
            auto=None,
            seed=work.number("mipro"),
            num_threads=work.threads,
            track_stats=False,
            log_dir=None,
            **work.given("num_candidates", "max_bootstrapped_demos", "max_labeled_demos", "init_temperature"),
        )
        tuned = optimizer.compile(
            work.student(),
            trainset=train,
            valset=valid,
            minibatch=bool(work.arguments["minibatch"]) and batch < len(valid),
            minibatch_size=batch,
            **work.given("num_trials", "minibatch_full_eval_steps", "view_data_batch_size", *proposing),
        )
    return work.with_prompts_of(tuned)


def simba(work: Work) -> RAG:
    """DSPy's ``SIMBA``: rules and demonstrations from runs of the same question that went better and worse."""
    options = ("num_candidates", "max_steps", "max_demos", "demo_input_field_maxlen")
    temperatures = ("temperature_for_sampling", "temperature_for_candidates")
    batch = min(int(work.arguments["bsize"]), len(work.train))
    with work.watched(work.score) as metric:
        optimizer = dspy.SIMBA(
            metric=metric, bsize=batch, num_threads=work.threads, **work.given(*options, *temperatures)
        )
        tuned = optimizer.compile(work.student(), trainset=work.examples(), seed=work.number("simba"))
    return work.with_prompts_of(tuned)


def gepa(work: Work) -> RAG:
    """DSPy's ``GEPA``: instructions written from feedback in words; nothing is written to a disk."""
    train, valid = work.learn_and_choose()
    merging = ("use_merge", "max_merge_invocations")
    choosing = ("candidate_selection_strategy", "component_selector", "skip_perfect_score")
    with work.watched(work.feedback) as metric:
        optimizer = dspy.GEPA(
            metric=_five(metric),
            reflection_lm=dspy.settings.lm.copy(temperature=float(work.arguments["temperature"])),
            reflection_minibatch_size=min(int(work.arguments["reflection_minibatch_size"]), len(train)),
            instruction_proposer=_proposer(int(work.arguments["max_chars"])),
            num_threads=work.threads,
            log_dir=None,
            track_stats=False,
            warn_on_score_mismatch=False,
            seed=work.number("gepa"),
            **work.given("max_metric_calls", "add_format_failure_as_feedback", *choosing, *merging),
        )
        tuned = optimizer.compile(work.student(), trainset=train, valset=valid)
    return work.with_prompts_of(tuned)


def _proposer(max_chars: int) -> Any:
    """DSPy's proposer, asked under our adapter; where it fails, a round goes without a proposal."""
    from dspy.teleprompt.gepa.instruction_proposal import InstructionProposer

    base: Any = InstructionProposer

    class Proposer(base):
        def __call__(self, *given: Any, **named: Any) -> dict[str, str]:
            try:
                return dict(super().__call__(*given, **named))
            except (AdapterParseError, LMError, ValueError):  # unreadable, too long a prompt, too long an instruction
                return {}

    return Proposer(adapter=PromptAdapter(), max_chars=max_chars)


def _five(metric: Any) -> Any:
    """The metric with the arguments that GEPA looks for."""

    def with_feedback(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
        return metric(gold, pred, trace, pred_name, pred_trace)

    return with_feedback

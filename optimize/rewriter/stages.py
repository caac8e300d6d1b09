"""The two stages of a training run: the warm-up on pairs (with transformers) and reinforcement learning (with TRL).

Both stages resume from their last checkpoint. The model learns without dropout, so only the sampled tokens are random.
In reinforcement learning (``GRPOTrainer``, Shao et al. 2024, arXiv 2402.03300), each step samples several completions
for each question in a batch and updates the weights once. The advantage of a completion is its reward minus the mean
reward for its question. There are two differences from the paper. The advantage is not divided by the standard
deviation, which would give a question whose samples hardly differ as much weight as a question whose samples differ
widely. The loss is a mean over all tokens in a step, so that a token in a long completion counts as much as any other.
A penalty of ``KL`` per nat limits how far the model drifts from the warmed-up model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from querywright.data.types import Question
from querywright.errors import ModelError, QuerywrightError
from querywright.models.hf import Base, encode, encode_completion, prompt_text, quietly_training
from querywright.optimize.evaluate import Progress
from querywright.optimize.rewriter.episodes import Reward, first_prompt, run_episodes
from querywright.optimize.rewriter.pairs import Pair
from querywright.optimize.rewriter.settings import TrainSettings
from querywright.programs.rag import RAG

WARMUP, REINFORCE = "warmup", "reinforce"

WARMUP_BATCH = 16
"""Pairs per warm-up step."""
ROOM = 128
"""Maximum number of tokens in a completion during reinforcement learning."""
KL = 0.02
"""Penalty per nat for drifting away from the model after the warm-up."""
TOP_K = 100
"""Number of most likely tokens to sample from (top-k)."""
EVAL_STEPS = 20
"""Reinforcement learning steps between two measurements on dev; each measurement saves a checkpoint."""
PATIENCE = 5
"""Number of measurements without improvement after which reinforcement learning ends."""

_AT_A_TIME = 2  # pairs in memory at a time


class TrainingError(QuerywrightError):
    """Training cannot continue; its last checkpoint is intact."""


def adapt(base: Base, rank: int, seed: int) -> Any:
    """Return the model with a LoRA adapter.

    Args:
        base: The base model.
        rank: Inner dimension of the matrices; alpha is twice as large.
        seed: Seed for their initial values.

    Raises:
        ModelError: The ``train`` extra is not installed.
    """
    import torch

    try:
        import trl  # noqa: F401
        from peft import LoraConfig, TaskType, get_peft_model
    except ImportError as error:
        raise ModelError(f"training requires peft and trl ({error}); run pip install 'querywright[train]'") from error
    config = LoraConfig(
        r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules="all-linear", task_type=TaskType.CAUSAL_LM
    )
    with torch.random.fork_rng(devices=[]), quietly_training():
        torch.manual_seed(seed % 2**63)
        return get_peft_model(base.model, config)


def warm_up(
    base: Base,
    train: Sequence[Pair],
    dev: Sequence[Pair],
    folder: Path,
    settings: TrainSettings,
    progress: Progress | None = None,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Train the model on the pairs; it ends with the weights from the epoch with the lowest loss on the dev pairs.

    The loss is the mean over the tokens in the completions, including the end token but not the prompt. AdamW's
    learning rate rises over the first 3% of the steps and then falls to 0 along a cosine.

    Returns:
        The facts for the card, and the log.

    Raises:
        TrainingError: The loss is not finite.
    """
    from transformers import DataCollatorForSeq2Seq, Trainer, TrainingArguments

    arguments = TrainingArguments(
        **_common(folder, settings),
        num_train_epochs=settings.epochs,
        learning_rate=settings.warmup_lr,
        lr_scheduler_type="cosine",
        warmup_steps=0.03,
        per_device_train_batch_size=_AT_A_TIME,
        gradient_accumulation_steps=WARMUP_BATCH // _AT_A_TIME,
        per_device_eval_batch_size=_AT_A_TIME,
        eval_strategy="epoch",
        save_strategy="epoch",
        metric_for_best_model="eval_loss",
        greater_is_better=False,
    )
    rows: list[Any] = [[_row(base.tokenizer, pair) for pair in part] for part in (train, dev)]
    trainer = Trainer(
        base.model,
        arguments,
        data_collator=DataCollatorForSeq2Seq(base.tokenizer),
        train_dataset=rows[0],
        eval_dataset=rows[1],
    )
    log = _run(trainer, WARMUP, progress)
    losses = [line["eval_loss"] for line in log if "eval_loss" in line]
    facts = {"steps": trainer.state.global_step, "pairs": len(train), "losses": losses}
    return facts | {"best_epoch": losses.index(min(losses)) + 1}, log


def reinforce(
    base: Base,
    train: Sequence[Question],
    dev: Sequence[Question],
    folder: Path,
    settings: TrainSettings,
    program: RAG,
    progress: Progress | None = None,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Train the model with reinforcement learning; the reward is based on the passages that its rewrites retrieve.

    The model ends with the weights that have the highest reward on dev.

    Returns:
        The facts for the card, and the log.

    Raises:
        TrainingError: The loss is not finite, or a question fails.
    """
    with quietly_training():
        from peft import get_peft_model_state_dict, set_peft_model_state_dict
        from transformers import EarlyStoppingCallback
        from trl.trainer.grpo_config import GRPOConfig
        from trl.trainer.grpo_trainer import GRPOTrainer

        arguments = GRPOConfig(
            **_common(folder, settings),
            max_steps=settings.steps,
            learning_rate=settings.lr,
            lr_scheduler_type="constant",
            per_device_train_batch_size=settings.group,
            gradient_accumulation_steps=settings.batch,
            num_generations=settings.group,
            per_device_eval_batch_size=2,
            num_generations_eval=2,
            max_completion_length=ROOM,
            top_k=TOP_K,
            beta=KL,
            scale_rewards="none",
            loss_type="dapo",
            gradient_checkpointing=False,
            eval_strategy="steps",
            eval_steps=min(EVAL_STEPS, settings.steps),
            eval_on_start=True,
            save_strategy="steps",
            save_steps=min(EVAL_STEPS, settings.steps),
            metric_for_best_model="eval_reward",
            greater_is_better=True,
        )
        reward = Reward(program, settings.metric)
        rewarded: Any = rewarder(program, reward, [*train, *dev], settings.threads)
        trainer = GRPOTrainer(
            model=base.model,
            reward_funcs=rewarded,
            args=arguments,
            train_dataset=_prompts(base, program, reward, train),
            eval_dataset=_prompts(base, program, reward, dev),
            processing_class=base.tokenizer,
            callbacks=[EarlyStoppingCallback(PATIENCE)],
        )
    start = {name: one.detach().clone() for name, one in get_peft_model_state_dict(base.model).items()}
    log = _run(trainer, REINFORCE, progress)
    rewards = {line["step"]: line["eval_reward"] for line in log if "eval_reward" in line}
    best = max(rewards, key=lambda step: rewards[step])
    if not best:
        set_peft_model_state_dict(base.model, start)
    flat = sum(line.get("frac_reward_zero_std") == 1.0 for line in log)  # all samples have the same reward
    facts = {"steps": trainer.state.global_step, "best_step": best, "first": rewards[0], "best": rewards[best]}
    return facts | {"flat": flat}, log


def rewarder(program: RAG, reward: Reward, questions: Sequence[Question], threads: int) -> Callable[..., list[float]]:
    """Return the reward function for TRL, which scores completions by what they retrieve through the technique.

    The function takes the completions and their question ids, and raises an error if an episode fails.
    """
    known = {one.id: one for one in questions}

    def rewards(completions: Sequence[str], question: Sequence[str], **_: Any) -> list[float]:
        asked = [known[id] for id in question]
        episodes = run_episodes(program, asked, lambda turn: completions[turn.place], threads=threads)
        failed = next((one for one in episodes if one.error is not None), None)
        if failed is not None:
            raise TrainingError(f"question {failed.question.id!r} failed in reinforcement learning ({failed.error})")
        return [one.reward for one in reward.score(episodes)]

    return rewards


def _row(tokenizer: Any, pair: Pair) -> dict[str, list[int]]:
    prompt = encode(tokenizer, prompt_text(tokenizer, pair.messages))
    completion = encode_completion(tokenizer, pair.text)
    return {"input_ids": prompt + completion, "labels": [-100] * len(prompt) + completion}


def _prompts(base: Base, program: Any, reward: Reward, questions: Sequence[Question]) -> Any:
    """Return a data set with the prompts for the questions that can be scored."""
    from datasets import Dataset

    values = reward.plain_values(questions)
    rows = [
        {"prompt": prompt_text(base.tokenizer, first_prompt(partial(program, **one.inputs))), "question": one.id}
        for one, value in zip(questions, values, strict=True)
        if not math.isnan(value)
    ]
    return Dataset.from_list(rows)


def _common(folder: Path, settings: TrainSettings) -> dict[str, Any]:
    """Return the arguments that both trainers share."""
    import torch

    return {
        "output_dir": str(folder),
        "seed": settings.seed,
        "bf16": torch.cuda.is_available() and torch.cuda.is_bf16_supported(),
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "load_best_model_at_end": True,
        "save_total_limit": 1,
        "disable_tqdm": True,
        "dataloader_pin_memory": torch.cuda.is_available(),
        "report_to": "none",
    }


def _run(trainer: Any, stage: str, progress: Progress | None) -> list[dict[str, Any]]:
    """Run a trainer from its last checkpoint, if there is one, and return the log."""
    from transformers import PrinterCallback, TrainerCallback
    from transformers.trainer_utils import get_last_checkpoint

    class Watch(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if progress is not None:
                progress(stage, state.global_step, state.max_steps)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            odd = [name for name in ("loss", "grad_norm", "eval_loss") if not math.isfinite(logs.get(name, 0.0))]
            if odd:
                raise TrainingError(
                    f"{odd[0]} in step {state.global_step} of the {stage} stage is {logs[odd[0]]}; retrain with a "
                    "lower learning rate (--warmup-lr or --lr)"
                )

    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(Watch())
    with quietly_training():
        trainer.train(resume_from_checkpoint=get_last_checkpoint(trainer.args.output_dir))
    log = [{name: value for name, value in line.items() if "/" not in name} for line in trainer.state.log_history]
    return [{"stage": stage, **line} for line in log]

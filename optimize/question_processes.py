"""Questions written and judged in processes of Ray, each of which makes its LMs by name and opens the store once.

What is sent to a process is names: of LMs, of addresses, and of the variables with their keys. Answers go into the
store of the working folder, the one that threads would use; on other machines that is the folder of the same path.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import dspy

from querywright.data.types import Passage
from querywright.errors import InputError
from querywright.metrics.judges import AnswerabilityJudge
from querywright.models.budget import Budget
from querywright.models.keys import api_key
from querywright.models.lm import resolve_lm
from querywright.models.store import Store, open_store
from querywright.models.usage import Ledger
from querywright.optimize.question_build import Records, write_record
from querywright.optimize.question_made import settings_digest
from querywright.optimize.question_ray import RecordOf, records_by_ray
from querywright.programs.question_writer import QuestionWriter
from querywright.retrieval.question_records import PassageRecord

GGUF = "gguf:"
WHOSE = ("writer", "judge")


@dataclass(frozen=True, slots=True)
class LMName:
    """What a process makes an LM of.

    Args:
        name: As ``resolve_lm`` takes it.
        api_base: Address of its server. Default none.
        key_variable: Name of the environment variable with its key. Default none.
    """

    name: str
    api_base: str | None = None
    key_variable: str | None = None


@dataclass(frozen=True, slots=True)
class BuildNames:
    """What a process needs to make records.

    Args:
        home: The working folder.
        lm: The LM that writes.
        judge_lm: The LM that judges; None for the one that writes.
        num_questions: Questions a passage at most.
        batch_size: Questions asked for in one call.
        threads: LM calls under way at a time in a process, 1 or more.
        max_calls: Calls that each of the two LMs may make at most, in all processes together. Default no limit.
        settings: Digest of how the questions are to be written and judged.
        budget: The name under which the processes count their calls, where there is a limit.
    """

    home: str
    lm: LMName
    judge_lm: LMName | None
    num_questions: int
    batch_size: int
    threads: int
    max_calls: int | None = None
    settings: str = ""
    budget: str = ""


def in_processes(names: BuildNames, *, workers: int, ledger: Ledger | None = None) -> Records:
    """Makes records in processes of Ray, the same as ``in_threads`` makes.

    Args:
        names: What is made by name in each process.
        workers: Processes, 1 or more.
        ledger: Takes what the processes spent. Default none; meters that are open take it anyway.
    """
    shared = replace(
        names,
        home=str(Path(names.home).resolve()),
        lm=_located(names.lm),
        judge_lm=names.judge_lm and _located(names.judge_lm),
    )

    def records(
        passages: Sequence[Passage], settings: str
    ) -> Generator[tuple[int, PassageRecord | Exception], None, None]:
        named = replace(shared, settings=settings, budget=f"questions {secrets.token_hex(8)}")
        try:
            make = partial(record_maker, named)
            yield from records_by_ray(make, passages, workers=workers, threads=names.threads, ledger=ledger)
        finally:
            for budget in filter(None, (_budget(named, whose, open_store(Path(named.home))) for whose in WHOSE)):
                budget.forget()

    return records


def record_maker(names: BuildNames) -> RecordOf:
    """Opens the store and makes the LMs, writer and judge of this process; gives what makes a record with them.

    Args:
        names: What they are called.

    Raises:
        InputError: A key is missing here, or records made here would not be those that were asked for.
        ModelError: An LM cannot be made here.
    """
    os.environ["QUERYWRIGHT_HOME"] = names.home
    store = open_store(Path(names.home))
    writer, judge = QuestionWriter(names.num_questions, names.batch_size), AnswerabilityJudge()
    lm = _resolved(names.lm, store, _budget(names, "writer", store))
    judge_lm = lm if names.judge_lm is None else _resolved(names.judge_lm, store, _budget(names, "judge", store))
    settings = settings_digest(writer, judge, lm, judge_lm)
    if settings != names.settings:
        raise InputError(
            f"a process of Ray would write questions under the settings {settings[:12]}, but {names.settings[:12]} "
            "are asked for: its version of querywright, or the address of an LM in its environment, is another one. "
            "Install the same version everywhere and give the addresses with --api-base"
        )
    return partial(
        write_record,
        settings=settings,
        writer=writer,
        judge=judge,
        lm=lm,
        judge_lm=judge_lm,
        turn=threading.Semaphore(names.threads),
    )


def _located(lm: LMName) -> LMName:
    """With the whole path of a file, since processes stand in folders of their own."""
    if not lm.name.startswith(GGUF):
        return lm
    return replace(lm, name=f"{GGUF}{Path(lm.name.removeprefix(GGUF)).expanduser().resolve()}")


def _budget(names: BuildNames, whose: str, store: Store) -> Budget | None:
    """Of an LM, for all processes together."""
    return None if names.max_calls is None else Budget(store, f"{names.budget} {whose}", calls=names.max_calls)


def _resolved(lm: LMName, store: Store, budget: Budget | None) -> dspy.LM:
    return resolve_lm(lm.name, store=store, budget=budget, api_base=lm.api_base, api_key=api_key(lm.key_variable))

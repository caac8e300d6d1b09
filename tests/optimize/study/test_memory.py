"""A study that is kept in memory is one study for all of its threads, and leaves nothing behind."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import optuna
import pytest

from querywright.errors import BudgetError, QuerywrightError
from querywright.models.usage import Cost
from querywright.optimize.study.claims import ClaimLostError
from querywright.optimize.study.spec import BudgetSpec
from querywright.optimize.study.storage import memory_storage


def test_trials_and_attributes_are_kept_while_it_is_open(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    verbosity = optuna.logging.get_verbosity()
    with memory_storage("s") as storage:
        study = storage.study(["maximize"])
        trial = study.ask()
        trial.suggest_int("n", 1, 3)
        study.tell(trial, 0.25)
        storage.set_attribute("prompts", {"a": [1]})
        (kept,) = storage.study(["maximize"], create=False).trials
        assert (kept.number, kept.value) == (0, 0.25)
        assert storage.attribute("prompts") == {"a": [1]}
    assert list(tmp_path.iterdir()) == []
    assert optuna.logging.get_verbosity() == verbosity


def test_a_claim_is_one_threads_at_a_time():
    with memory_storage("s") as storage:
        with storage.claims.take("a") as claim:
            assert claim.held
            assert storage.claims.take("a") is None
            with storage.claims.take("b"):
                pass
            with pytest.raises(QuerywrightError, match="'a' for 0 seconds"), storage.claims.wait("a", 0):
                pass
        with pytest.raises(ClaimLostError):
            claim.check()
        again = storage.claims.take("a")
        claim.release()  # released long ago, so this is another's
        assert again.held


def test_threads_share_one_account():
    with memory_storage("s") as storage, ThreadPoolExecutor(8) as pool:
        account = storage.account(BudgetSpec(calls=50))
        list(pool.map(lambda n: account.reserve(), range(50)))
        account.settle(Cost(saved=3))
        assert (account.spent.calls, account.spent.saved) == (50, 3)
        with pytest.raises(BudgetError, match="50 LM calls"):
            account.reserve()

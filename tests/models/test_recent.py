"""What was used lately."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from querywright.models.memo import Memo, _Outcome
from querywright.models.recent import Recent
from querywright.models.usage import Cost


def test_what_was_not_used_for_longest_goes():
    recent = Recent(3)
    recent.update({"a": 1, "b": 2, "c": 3})
    assert recent.get("a") == 1
    recent.update({"d": 4})
    assert [recent.get(key) for key in "abcd"] == [1, None, 3, 4]
    recent.update({"a": 5, "e": 6})
    assert [recent.get(key) for key in "abcde"] == [5, None, None, 4, 6]
    assert len(recent) == 3


def test_without_a_number_nothing_goes():
    recent = Recent()
    recent.update({number: number + 1 for number in range(10_000)})
    assert len(recent) == 10_000
    assert recent.get(0) == 1


def test_many_threads_keep_the_number():
    recent = Recent(50)

    def use(number):
        recent.update({number % 80: number % 80})
        return recent.get(number % 70) in (None, number % 70)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(use, range(4000)))
    assert len(recent) == 50


def test_a_memo_forgets_what_a_store_has_and_keeps_what_could_not_be_read():
    memo = Memo(2)
    memo.end(b"unread", _Outcome(None, ValueError("not JSON"), Cost(saved=1)))
    for number in range(4):
        memo.end(bytes([number]), _Outcome({"answer": [str(number)]}, None, Cost(saved=1)))
    assert len(memo) == 3
    assert isinstance(memo.find(b"unread"), _Outcome)
    found = memo.find(bytes([3]))
    assert isinstance(found, _Outcome)
    assert found.values == {"answer": ["3"]}
    assert memo.find(bytes([0])) is None

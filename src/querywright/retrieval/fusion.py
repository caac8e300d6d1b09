"""Pure functions that fuse several ranked lists of hits into one.

Each passage appears once in the result. Passages with different ids count as the same if their titles and texts differ
only in case and spacing; the first one is kept. Ties go to the passage with the better single rank, then to the earlier
list, then to the smaller id.
"""

from __future__ import annotations

import hashlib
import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, zip_longest
from typing import Any

from querywright.data.types import Passage
from querywright.errors import InputError, TechniqueError
from querywright.retrieval.types import Hit

HitLists = Sequence[Sequence[Hit]]
READINGS_KEPT = 16_384


def rrf(
    lists: HitLists,
    *,
    weights: Sequence[float] | None = None,
    k: float = 60,
    limit: int | None = None,
) -> list[Hit]:
    """Fuse lists by reciprocal rank: score(p) = sum over lists of weight / (k + rank of p).

    A list that does not contain the passage adds 0. Ranks start at 1, as in the paper. RAG-Fusion implementations that
    count ranks from 0 with k = 60 correspond to k = 59 here.

    Args:
        lists: One ranked list per query, best first.
        weights: One weight per list, 0 or more. Default 1 each.
        k: Smoothing constant, 0 or more. Larger values reduce the advantage of the top ranks. Default 60.
        limit: Maximum number of hits, 1 or more. Default: all.

    Returns:
        Hits with the fused score and ranks from 1.

    Raises:
        InputError: A weight, ``k``, or ``limit`` is out of range.

    Source: Cormack, Clarke and Buettcher, SIGIR 2009, DOI 10.1145/1571941.1572114; the weights are ours.
    """
    used = [1.0] * len(lists) if weights is None else list(weights)
    if len(used) != len(lists) or not all(math.isfinite(weight) and weight >= 0 for weight in used):
        raise InputError(
            f"cannot fuse {len(lists)} lists with the weights {used}; pass one finite, nonnegative weight per list"
        )
    if not math.isfinite(k) or k < 0:
        raise InputError(f"k must be 0 or more, but got {k}")

    def score(entry: _Entry) -> float:
        # fsum returns the same score for any order of the lists.
        return math.fsum([used[index] / (k + position + 1) for index, position, _ in entry.places])

    return _ranked(_entries(lists), score, limit)


def best_score(lists: HitLists, *, limit: int | None = None) -> list[Hit]:
    """Rank passages by their highest score in any list; use this rule only if all lists' scores are on the same scale.

    Args:
        lists: One ranked list per query, best first.
        limit: Maximum number of hits, 1 or more. Default: all.
    """
    return _ranked(_entries(lists), lambda entry: max(score for _, _, score in entry.places), limit)


def interleave(lists: HitLists, *, limit: int | None = None) -> list[Hit]:
    """Take the first hits of all lists, then the second hits, and so on, skipping repeated passages.

    A hit keeps its score from its list, so scores may increase with the rank.

    Args:
        lists: One ranked list per query, best first.
        limit: Maximum number of hits, 1 or more. Default: all.

    Source: HCQR, arXiv 2603.19008, does not define the order; this order gives each query its share of a small passage
    budget.
    """
    return _first_seen((hit for hits in zip_longest(*lists) for hit in hits if hit is not None), limit)


def union(lists: HitLists, *, limit: int | None = None) -> list[Hit]:
    """Concatenate the lists. A repeated passage keeps its first position and the score it has there.

    Args:
        lists: One ranked list per query, best first.
        limit: Maximum number of hits, 1 or more. Default: all.
    """
    return _first_seen(chain.from_iterable(lists), limit)


def shares(lists: HitLists, *, limit: int | None = None) -> list[Hit]:
    """Concatenate the lists, each with an equal share of the limit; places that a list leaves unused go to the others.

    If the limit does not divide equally, the first lists get the extra places. A passage that an earlier list has
    contributed does not count toward a later list's share. A hit keeps its score from its list, so scores may increase
    with the rank.

    Args:
        lists: One ranked list per query, best first.
        limit: Maximum number of hits, 1 or more. Default: all.

    Source: the order (question first) is from LangChain's step-back example; the equal shares are ours.
    """
    most = sum(len(hits) for hits in lists) if limit is None else limit
    quotas = [most // len(lists) + (index < most % len(lists)) for index in range(len(lists))]
    seen = _Seen()
    entries = [[seen.entry(hit.passage) for hit in hits] for hits in lists]
    chosen: list[dict[int, tuple[Passage, float]]] = [{} for _ in lists]
    taken: set[int] = set()
    for room in (quotas, [most] * len(lists)):  # first each list's share, then the places left unused
        for mine, own, hits, allowed in zip(chosen, entries, lists, room, strict=True):
            for position, (entry, hit) in enumerate(zip(own, hits, strict=True)):
                if len(mine) < allowed and len(taken) < most and id(entry) not in taken:
                    taken.add(id(entry))
                    mine[position] = entry.passage, hit.score
    return _hits([mine[position] for mine in chosen for position in sorted(mine)], limit)


FUSIONS: dict[str, Callable[..., list[Hit]]] = {
    "rrf": rrf,
    "interleave": interleave,
    "union": union,
    "best_score": best_score,
    "shares": shares,
}


def fuse(
    name: str,
    lists: HitLists,
    *,
    weights: Sequence[float] | None = None,
    k: float = 60,
    limit: int | None = None,
) -> list[Hit]:
    """Fuse lists with the rule of the given name.

    Args:
        name: A key of ``FUSIONS``.
        lists: One ranked list per query, best first.
        weights: One weight per list, 0 or more; only ``rrf`` uses weights. Default 1 each.
        k: Smoothing constant of ``rrf``. Default 60.
        limit: Maximum number of hits, 1 or more. Default: all.

    Raises:
        TechniqueError: There is no such rule.
    """
    if name not in FUSIONS:
        raise TechniqueError(f"unknown fusion {name!r}; known: {', '.join(FUSIONS)}")
    options: dict[str, Any] = {"weights": weights, "k": k} if name == "rrf" else {}
    return FUSIONS[name](lists, limit=limit, **options)


@dataclass(slots=True)
class _Entry:
    """A passage and its places: list, position (from 0), and score, with at most one place per list."""

    passage: Passage
    places: list[tuple[int, int, float]]


class _Seen:
    """The passages seen so far; passages with the same text share one entry."""

    def __init__(self) -> None:
        self._by_id: dict[str, _Entry] = {}
        self._by_text: dict[bytes, _Entry] = {}

    def entry(self, passage: Passage) -> _Entry:
        """Return the entry of a passage; a new entry has no places."""
        known = self._by_id.get(passage.id)
        if known is None:
            known = self._by_text.setdefault(reading(passage.title, passage.text), _Entry(passage, []))
            self._by_id[passage.id] = known
        return known


@lru_cache(maxsize=READINGS_KEPT)
def reading(title: str, text: str) -> bytes:
    """Return a digest that is the same for passages whose titles and texts differ only in case and spacing.

    Digests are cached because computing them takes most of the time in a fusion.
    """
    words = f"{title}\n{text}".casefold().split()
    return hashlib.blake2b(" ".join(words).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _entries(lists: HitLists) -> list[_Entry]:
    """Return the distinct passages of the lists, in the order of their first occurrence."""
    seen, found = _Seen(), list[_Entry]()
    for index, hits in enumerate(lists):
        for position, hit in enumerate(hits):
            entry = seen.entry(hit.passage)
            if not entry.places:
                found.append(entry)
            elif entry.places[-1][0] == index:
                continue
            entry.places.append((index, position, hit.score))
    return found


def _first_seen(hits: Iterable[Hit], limit: int | None) -> list[Hit]:
    return _hits([(entry.passage, entry.places[0][2]) for entry in _entries([list(hits)])], limit)


def _ranked(entries: Sequence[_Entry], score: Callable[[_Entry], float], limit: int | None) -> list[Hit]:
    def order(scored: tuple[float, _Entry]) -> tuple[float, int, int, str]:
        best = min(position for _, position, _ in scored[1].places)
        return -scored[0], best, scored[1].places[0][0], scored[1].passage.id

    scored = [(score(entry), entry) for entry in entries]
    if limit is not None and 0 < limit < len(scored):  # the sort key is computed only for hits that may be returned
        least = heapq.nlargest(limit, (one for one, _ in scored))[-1]
        scored = [one for one in scored if not one[0] < least]
    return _hits([(entry.passage, one) for one, entry in sorted(scored, key=order)], limit)


def _hits(pairs: Sequence[tuple[Passage, float]], limit: int | None) -> list[Hit]:
    if limit is not None and limit < 1:
        raise InputError(f"limit must be 1 or more, but got {limit}")
    return [Hit(passage, score, rank) for rank, (passage, score) in enumerate(pairs[:limit], start=1)]

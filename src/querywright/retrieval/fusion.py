"""Fusion: several ranked lists of hits become one.

Pure functions. A passage counts once: by its id, and passages of another id whose title and text are the same
but for case and spacing are the passage that was seen first. Ties go to the better single rank, then to the
list that was seen first, then to the smaller id.
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
    """Reciprocal rank fusion: score(p) = sum over lists of weight / (k + rank of p), absent ones adding 0.

    The first rank is 1, as in the paper. Codes of RAG-Fusion that count from 0 with 60 are this one with 59.

    Args:
        lists: One ranked list a query, best first.
        weights: One a list, 0 or more. Default 1 each.
        k: Smoothing, 0 or more: the larger, the less the first ranks stand out. Default 60.
        limit: At most so many hits, 1 or more. Default all.

    Returns:
        Hits with the fused score, ranks from 1.

    Raises:
        InputError: When a weight, ``k`` or ``limit`` is out of range.

    Source: Cormack, Clarke and Buettcher, SIGIR 2009, DOI 10.1145/1571941.1572114; the weights are ours.
    """
    used = [1.0] * len(lists) if weights is None else list(weights)
    if len(used) != len(lists) or not all(math.isfinite(weight) and weight >= 0 for weight in used):
        raise InputError(f"rrf needs {len(lists)} finite weights of 0 or more, one a list, but got {used}")
    if not math.isfinite(k) or k < 0:
        raise InputError(f"rrf needs k of 0 or more, but got {k}")

    def score(entry: _Entry) -> float:
        # fsum: the same summands give the same score in whatever order the lists came.
        return math.fsum([used[index] / (k + position + 1) for index, position, _ in entry.places])

    return _ranked(_entries(lists), score, limit)


def best_score(lists: HitLists, *, limit: int | None = None) -> list[Hit]:
    """Each passage with the best score that any list gave it; sensible only where lists share one scale.

    Args:
        lists: One ranked list a query, best first.
        limit: At most so many hits, 1 or more. Default all.
    """
    return _ranked(_entries(lists), lambda entry: max(score for _, _, score in entry.places), limit)


def interleave(lists: HitLists, *, limit: int | None = None) -> list[Hit]:
    """Round robin: first hits of all lists, then second hits, and so on; what was seen before is passed over.

    A hit keeps the score it had in the list it was taken from, so scores need not fall with the rank.

    Args:
        lists: One ranked list a query, best first.
        limit: At most so many hits, 1 or more. Default all.

    Source: HCQR, arXiv 2603.19008, leaves the order open; ours gives each query its share of a small budget.
    """
    return _first_seen((hit for hits in zip_longest(*lists) for hit in hits if hit is not None), limit)


def union(lists: HitLists, *, limit: int | None = None) -> list[Hit]:
    """The lists one after another, each passage at its first place, with the score it had there.

    Args:
        lists: One ranked list a query, best first.
        limit: At most so many hits, 1 or more. Default all.
    """
    return _first_seen(chain.from_iterable(lists), limit)


def shares(lists: HitLists, *, limit: int | None = None) -> list[Hit]:
    """List by list, each with an equal share of the limit; what a list leaves over goes to the others.

    Shares that do not divide go to the first lists. A passage that an earlier list has chosen does not count against
    a later one's share. A hit keeps the score it had in its list, so scores need not fall with the rank.

    Args:
        lists: One ranked list a query, best first.
        limit: At most so many hits, 1 or more. Default all.

    Source: the order of LangChain's step-back example, question first; the equal shares are ours.
    """
    most = sum(len(hits) for hits in lists) if limit is None else limit
    quotas = [most // len(lists) + (index < most % len(lists)) for index in range(len(lists))]
    seen = _Seen()
    entries = [[seen.entry(hit.passage) for hit in hits] for hits in lists]
    chosen: list[dict[int, tuple[Passage, float]]] = [{} for _ in lists]
    taken: set[int] = set()
    for room in (quotas, [most] * len(lists)):  # its own share first, then what the others left over
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
    """Fuses by the name of a rule.

    Args:
        name: A key of ``FUSIONS``.
        lists: One ranked list a query, best first.
        weights: One a list, 0 or more; only ``rrf`` uses them. Default 1 each.
        k: Smoothing of ``rrf``. Default 60.
        limit: At most so many hits, 1 or more. Default all.

    Raises:
        TechniqueError: When no rule has the name.
    """
    if name not in FUSIONS:
        raise TechniqueError(f"unknown fusion {name!r}; known: {', '.join(FUSIONS)}")
    options: dict[str, Any] = {"weights": weights, "k": k} if name == "rrf" else {}
    return FUSIONS[name](lists, limit=limit, **options)


@dataclass(slots=True)
class _Entry:
    """A passage and where it was found: (list, position from 0, score), once a list."""

    passage: Passage
    places: list[tuple[int, int, float]]


class _Seen:
    """Tells whether a passage, or one that reads the same, was seen before."""

    def __init__(self) -> None:
        self._by_id: dict[str, _Entry] = {}
        self._by_text: dict[bytes, _Entry] = {}

    def entry(self, passage: Passage) -> _Entry:
        """The entry of the passage; without places when it is new."""
        known = self._by_id.get(passage.id)
        if known is None:
            known = self._by_text.setdefault(reading(passage.title, passage.text), _Entry(passage, []))
            self._by_id[passage.id] = known
        return known


@lru_cache(maxsize=READINGS_KEPT)
def reading(title: str, text: str) -> bytes:
    """A digest that is the same for passages whose title and text differ in case and spacing only.

    It is cached because it costs most of a fusion.
    """
    words = f"{title}\n{text}".casefold().split()
    return hashlib.blake2b(" ".join(words).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _entries(lists: HitLists) -> list[_Entry]:
    """The passages of the lists, each once, in the order in which they were seen."""
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
    if limit is not None and 0 < limit < len(scored):  # what decides between equals is looked at for few
        least = heapq.nlargest(limit, (one for one, _ in scored))[-1]
        scored = [one for one in scored if not one[0] < least]
    return _hits([(entry.passage, one) for one, entry in sorted(scored, key=order)], limit)


def _hits(pairs: Sequence[tuple[Passage, float]], limit: int | None) -> list[Hit]:
    if limit is not None and limit < 1:
        raise InputError(f"limit must be 1 or more, but got {limit}")
    return [Hit(passage, score, rank) for rank, (passage, score) in enumerate(pairs[:limit], start=1)]

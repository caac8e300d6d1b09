"""Rankings that were searched before, in memory and in a store."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from querywright.data.types import Passage
from querywright.errors import InputError, QuerywrightError
from querywright.models.recent import Recent
from querywright.models.store import Store
from querywright.retrieval.types import Hit

RUNG = 25
"""The least depth at which prefixes are kept; the next ones are 50, 100 and so on, so that runs of different depths
find each other's rankings."""
RUNGS = 8

MOST_RANKINGS = 100_000
"""Rankings in memory beside a store: some 400 MB where each has 100 passages, which rankings share."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """What a search found, small in memory.

    Args:
        passages: Best first.
        scores: One a passage.
        notes: A text a passage, such as the question that led to it; empty where there are none.
    """

    passages: tuple[Passage, ...]
    scores: array[float]
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, hits: Sequence[Hit], notes: Sequence[str] = ()) -> Ranking:
        """The ranking of some hits."""
        return cls(tuple(hit.passage for hit in hits), array("d", [hit.score for hit in hits]), tuple(notes))

    def hits(self, k: int) -> list[Hit]:
        """The first ``k`` hits."""
        return [Hit(*one) for one in zip(self.passages[:k], self.scores, range(1, k + 1), strict=False)]

    def to_bytes(self) -> bytes:
        """The ranking as JSON, its passages by their ids."""
        data: dict[str, Any] = {"ids": [passage.id for passage in self.passages], "scores": list(self.scores)}
        return json.dumps(data | ({"notes": list(self.notes)} if self.notes else {})).encode()

    @classmethod
    def from_bytes(cls, data: bytes, get: Callable[[Sequence[str]], Sequence[Passage]]) -> Ranking:
        """The ranking that ``to_bytes`` wrote.

        Args:
            data: What was written.
            get: Gives passages by their ids.

        Raises:
            ValueError: It is damaged.
        """
        try:
            read = json.loads(data)
            made = cls(tuple(get(read["ids"])), array("d", read["scores"]), tuple(read.get("notes", ())))
        except (LookupError, TypeError, AttributeError, QuerywrightError) as error:
            raise ValueError(f"no ranking: {error}") from error
        if not len(made.passages) == len(made.scores) == (len(made.notes) or len(made.scores)):
            raise ValueError("no ranking: it has not as many scores as passages")
        return made


@dataclass(frozen=True, slots=True)
class Depth:
    """How deep a ranking is searched.

    Args:
        searched: Hits asked for.
        name: Stands in the key of the ranking in the store.
        others: Names of deeper rankings whose beginning is this one.
    """

    searched: int
    name: str
    others: tuple[str, ...] = ()


@lru_cache(maxsize=256)
def depth_for(k: int, deepest: int, limit: int | None) -> Depth:
    """How deep to search so that every shallower search is the beginning of what is found.

    Args:
        k: Hits wanted.
        deepest: Most hits that will be wanted.
        limit: Up to which depth a shallower search is the beginning of a deeper one; None for any.
    """
    if limit is not None and k > limit:
        return Depth(k, f"exactly {k}")
    wanted = max(k, deepest)
    rungs = [RUNG * 2**step for step in range(RUNGS)]
    rung = next((one for one in rungs if one >= wanted), wanted)
    if limit is not None and rung >= limit:
        return Depth(limit, f"up to {limit}")
    others = [f"up to {one}" for one in rungs if one > rung and (limit is None or one < limit)]
    return Depth(rung, f"up to {rung}", (*others, *([] if limit is None else [f"up to {limit}"])))


class Rankings:
    """Rankings by what was searched, safe for threads.

    A ranking in the store that cannot be read is searched again. Beside a store, memory has those used lately.

    Args:
        store: Where they are kept beside memory, or None.
        kind: Their kind in the store.
        get: Gives passages by their ids; what it does not give as it was found is kept in memory only.
    """

    def __init__(
        self, store: Store | None, kind: str, get: Callable[[Sequence[str]], Sequence[Passage]] | None
    ) -> None:
        self._store = None if get is None else store
        self._kind = kind
        self._get: Callable[[Sequence[str]], Sequence[Passage]] = get or (lambda ids: [])
        most = None if self._store is None else MOST_RANKINGS
        self._held: Recent[tuple[str, str | bytes], tuple[int, Ranking]] = Recent(most)

    def ranked(
        self,
        keys: Sequence[str | bytes],
        k: int,
        depth: Depth,
        search: Callable[[list[int]], Sequence[Ranking]],
        way: str = "",
    ) -> list[Ranking]:
        """The ranking of each key; those that are not kept are searched in one go.

        Args:
            keys: What is searched for, a text or the bytes of a vector.
            k: Hits wanted.
            depth: How deep to search.
            search: Given the places of the keys that are missing, their rankings.
            way: How is searched, where there are several ways.

        Raises:
            InputError: The search gave another number of rankings.
        """
        exact = depth.name if depth.name.startswith("exactly") else ""
        way = f"{way}\0{exact}"
        found = {key: self._held.get((way, key)) for key in keys}
        kept = {key: one[1] for key, one in found.items() if one is not None and one[0] >= k}
        missing = [key for key in found if key not in kept]
        if missing:
            stored = self._stored(missing, depth, way)
            unknown = [key for key in missing if key not in stored]
            if unknown:
                places = {key: place for place, key in reversed(list(enumerate(keys)))}
                searched = search([places[key] for key in unknown])
                if len(searched) != len(unknown):
                    raise InputError(
                        f"the retriever gave {len(searched)} lists for {len(unknown)} queries; search must give one a "
                        "query, in their order"
                    )
                made = dict(zip(unknown, searched, strict=True))
                self._keep(made, depth, way)
                stored |= {key: (depth.searched, ranking) for key, ranking in made.items()}
            self._held.update({(way, key): one for key, one in stored.items()})
            kept |= {key: one[1] for key, one in stored.items()}
        return [kept[key] for key in keys]

    def _stored(self, keys: Sequence[str | bytes], depth: Depth, way: str) -> dict[str | bytes, tuple[int, Ranking]]:
        if self._store is None:
            return {}
        names = (depth.name, *depth.others)
        digests = {key: _digest(way, key) for key in keys}
        values = self._store.get_many(self._kind, [f"{one} {name}" for one in digests.values() for name in names])
        found: dict[str | bytes, tuple[int, Ranking]] = {}
        for key, digest in digests.items():
            for name in names:
                value = values.get(f"{digest} {name}")
                if value is None or key in found:
                    continue
                try:
                    found[key] = int(name.rpartition(" ")[2]), Ranking.from_bytes(value, self._get)
                except ValueError:  # damaged, or of a passage that is gone: it is searched again
                    continue
        return found

    def _keep(self, made: Mapping[str | bytes, Ranking], depth: Depth, way: str) -> None:
        if self._store is not None:
            values = {
                f"{_digest(way, key)} {depth.name}": ranking.to_bytes()
                for key, ranking in made.items()
                if self._comes_back(ranking)
            }
            self._store.put_many(self._kind, values)

    def _comes_back(self, ranking: Ranking) -> bool:
        """Whether the ids of a ranking lead to the very passages that were found."""
        try:
            again = self._get([passage.id for passage in ranking.passages])
            return all(one is other for one, other in zip(again, ranking.passages, strict=True))
        except (QuerywrightError, LookupError, TypeError, ValueError, AttributeError):  # it may be anyone's method
            return False


def _digest(way: str, key: str | bytes) -> str:
    sort, data = ("text", key.encode("utf-8", "surrogatepass")) if isinstance(key, str) else ("vector", key)
    return hashlib.sha256(f"{way}\0{sort}\0".encode() + data).hexdigest()

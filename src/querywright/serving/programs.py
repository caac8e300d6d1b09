"""The programs that are served, and how another state of an artifact takes the place of the one before."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from querywright.errors import QuerywrightError
from querywright.serving.failures import NOT_RELOADED, RequestError
from querywright.serving.logging import log_event, log_failure
from querywright.serving.metrics import ServerMetrics
from querywright.serving.settings import ServeSettings

if TYPE_CHECKING:
    from querywright.optimize.artifacts.files import ArtifactManifest
    from querywright.optimize.artifacts.loaded import LoadedProgram

Load = Callable[[str, "LoadedProgram | None"], "LoadedProgram"]
"""Loads the artifact of a name; given is the program that it is to replace, if there is one."""


@dataclass(frozen=True, slots=True)
class Served:
    """A program under its name, and when it was loaded, ISO 8601."""

    name: str
    program: LoadedProgram
    loaded: str

    @classmethod
    def now(cls, name: str, program: LoadedProgram) -> Served:
        """A program that was just loaded."""
        return cls(name, program, datetime.now(UTC).isoformat(timespec="seconds"))

    @property
    def version(self) -> str:
        """Tells states of an artifact apart."""
        return self.program.id

    def told(self) -> dict[str, Any]:
        """What ``/health`` tells of it."""
        manifest = self.program.manifest
        return {
            "name": self.name, "version": self.version, "technique": manifest.technique, "reader": manifest.reader,
            "loaded": self.loaded,
        }  # fmt: skip


class Programs:
    """Programs by name. Who took one keeps it until the end of its question, whatever is loaded meanwhile."""

    def __init__(
        self, programs: Mapping[str, LoadedProgram], load: Load | None, metrics: ServerMetrics, *, log_questions: bool
    ) -> None:
        self._served = {name: Served.now(name, program) for name, program in programs.items()}
        self._load = load
        self._metrics = metrics
        self._log_questions = log_questions
        self._reloading = asyncio.Lock()

    def __iter__(self) -> Iterator[Served]:
        return iter(self._served.values())

    def named(self, name: str | None) -> Served:
        """The program of that name, or the first one."""
        found = next(iter(self._served.values())) if name is None else self._served.get(name)
        if found is None:
            raise RequestError(404, "artifact", f"there is no such artifact; there are: {', '.join(self._served)}")
        return found

    async def reload(self) -> list[dict[str, str]]:
        """Load every artifact again and put all of them in the places of those before, or none; one after another."""
        async with self._reloading:
            before = dict(self._served)
            try:
                if self._load is None:
                    raise QuerywrightError("the programs of this server were given to it, so it cannot load them again")
                made = {
                    name: Served.now(name, await asyncio.to_thread(self._load, name, old.program))
                    for name, old in before.items()
                }
            except Exception as error:  # noqa: BLE001 - the server goes on with what it has
                self._metrics.reloaded(False)
                if not isinstance(error, QuerywrightError):
                    log_failure(error, questions=self._log_questions, during="reload")
                    raise RequestError(409, "reload", NOT_RELOADED) from None
                log_event("reload", result="failed", why=str(error))
                raise RequestError(409, "reload", f"nothing was replaced: {error}") from None
            self._served = made
            self._metrics.reloaded(True)
            changes = [
                {"name": name, "before": before[name].version, "after": one.version} for name, one in made.items()
            ]
            log_event("reload", result="done", artifacts=changes)
            return changes


def loader(settings: ServeSettings) -> Load:
    """Loads the artifacts of these settings; an LM that is asked for again is shared."""
    import dspy

    from querywright.optimize.artifacts.files import read_artifact
    from querywright.optimize.artifacts.load import load

    paths = settings.names()
    digests = dict(zip(paths, settings.digests, strict=False))
    made: dict[str, Any] = {}

    def lm_for(manifest: ArtifactManifest, before: LoadedProgram | None) -> Any:
        lm = settings.lm
        if lm is None and before is not None and manifest.lm == before.manifest.lm:
            return before.lm  # a model in this process would be there twice
        if not callable(lm) or isinstance(lm, dspy.BaseLM):
            return lm
        if manifest.lm not in made:
            made[manifest.lm] = lm(manifest)
        return made[manifest.lm]

    def one(name: str, before: LoadedProgram | None) -> LoadedProgram:
        artifact = read_artifact(paths[name], digest=digests.get(name))
        manifest, writer = artifact.manifest, settings.writer_lm
        if before is not None and manifest.writer == before.manifest.writer:
            writer = before.program.technique.writer_lm or writer
        program = load(
            artifact, lm=lm_for(manifest, before), reranker=settings.reranker, writer_lm=writer, home=settings.home,
            verify=settings.verify,
        )  # fmt: skip
        if manifest.collection is not None:
            # Search once for what nobody searched for: a model that is missing is found out now.
            program.program.technique.searched.search([f"ready {uuid.uuid4().hex}"], 1)
        return program

    return one

"""Two small artifacts, and a scripted LM."""

from __future__ import annotations

import os
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# Frameworks read these variables when a test module imports them, which is before it imports an adapter.
os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "false"
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ["LANGSMITH_TRACING"] = "false"

KEY = "sk-never-to-be-saved-1234567890"
CARDS = {
    "home": "A home blood pressure reading to write down is the average of several, seated and rested, in a week.",
    "feet": "Look at both feet every evening and show any new sore to the care team soon.",
    "juice": "Fast sugar such as juice or glucose tablets comes first when blood sugar is very low.",
    "lenses": "The eye clinic looks at the retina once a year, also when sight is good.",
    "salt": "Bread and ready meals bring most of the salt; fresh food brings little of it.",
}
QUESTION = "Which home blood pressure reading should be written down?"
OPTIONS = ["Only the highest one", "The average of several, seated and rested", "One after a walk"]


class Flat:
    """An embedder for a collection that is searched by words."""

    id = "flat"
    dimension = 2

    def encode(self, texts: Any, /) -> np.ndarray:
        return np.tile(np.asarray([[1, 0]], dtype=np.float32), (len(texts), 1))


SCRIPTED = runpy.run_path(str(Path(__file__).parents[1] / "scripted_server.py"))
fill_in = SCRIPTED["fill_in"]


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like after `make demo`: ``artifacts/hcqr-sample`` with its collection, and ``artifacts/plain``."""
    from querywright.data.types import Passage, Question
    from querywright.models.lm import resolve_lm
    from querywright.optimize.artifacts.save import save_program
    from querywright.programs import make_program
    from querywright.retrieval.bm25 import BM25Retriever
    from querywright.retrieval.index import build_collection

    folder = tmp_path_factory.mktemp("place")
    home = folder / ".querywright"
    passages = [Passage(key, text, key.title(), {"source": "cards"}) for key, text in CARDS.items()]
    build_collection("sample", passages, embedder=Flat(), home=home)
    retriever = BM25Retriever("sample", home=home)
    server = SCRIPTED["ScriptedServer"]([fill_in])
    lm = resolve_lm("openai/scripted", api_base=server.url, api_key=KEY)
    for name, technique, reader, options in (
        ("hcqr-sample", "hcqr", "multiple_choice", OPTIONS),
        ("plain", "plain", "short_answer", []),
    ):
        save_program(
            folder / "artifacts" / name,
            make_program(technique, retriever, reader=reader, max_passages=2),
            lm=lm,
            asked=[Question("q", QUESTION, tuple(options))],
            threads=1,
            made={},
            card=f"# {name}\n",
        )
    server.close()
    return folder


@pytest.fixture
def server(chat_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The LM. Environment variables contain its address, so artifacts find it by its name."""
    started = chat_server(fill_in)
    monkeypatch.setenv("OPENAI_API_BASE", started.url)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("QUERYWRIGHT_ALLOW_LM", "openai/*")
    return started


@pytest.fixture
def open_program(place: Path, server: Any) -> Callable[..., Any]:
    """Return a function that loads one of the artifacts."""
    from querywright.optimize.artifacts.load import load

    return lambda name="hcqr-sample": load(place / "artifacts" / name, home=place / ".querywright")


@pytest.fixture
def program(open_program: Callable[..., Any]) -> Any:
    """The loaded ``hcqr-sample``."""
    return open_program()


@pytest.fixture
def at_place(place: Path, server: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder as the current directory, so that the paths of the examples exist."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("QUERYWRIGHT_HOME", str(place / ".querywright"))
    return place


@pytest.fixture
def example(at_place: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[str], list[str]]:
    """Return a function that runs an example in this process, and returns its printed lines."""

    def call(name: str) -> list[str]:
        capsys.readouterr()
        runpy.run_path(str(Path(__file__).parents[2] / "examples" / name), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return call

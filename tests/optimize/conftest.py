"""A small world with a known best way to search it, an LM that answers from a script, and a store in memory's place."""

from __future__ import annotations

import base64
import gzip
import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy import lm15

from querywright.data.splits import Splits
from querywright.data.types import Label, Passage, Question
from querywright.models.budget import Budget
from querywright.models.circuit_breaker import Limits
from querywright.models.engine import AsyncLMEngine, LMEngine
from querywright.models.response_parsing import text_response
from querywright.models.store import Store
from querywright.models.usage import Ledger
from querywright.optimize.artifacts.files import ArtifactManifest, Golden, write_artifact
from querywright.optimize.optimizers import OPTIMIZERS, Bound, Optimizer
from querywright.optimize.study.spec import StudySpec, read_spec
from querywright.programs import make_program
from querywright.programs.hyperparameters import Knob
from querywright.retrieval.types import Hit

KEY = "key"
"""The word in a query that leads to the deciding passage, where rewriting wins."""


@dataclass(frozen=True)
class Asked:
    """One request to the LM: what it is for, the number of its question, and its prompt."""

    step: str
    number: int
    prompt: str
    options: tuple[str, ...]
    properties: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[tuple[str, str], ...] = ()
    seed: int | None = None
    temperature: float = 0.0

    @property
    def proposes(self) -> bool:
        """Whether it asks for a prompt, or for what one rests on, and for nothing that a program writes."""
        return not {"best_guess", "support", "answer"} & set(self.properties)


@dataclass
class ScriptedEngine:
    """Writes a key word into every query, and answers rightly when the deciding passage is shown.

    Args:
        before: Called with how many requests came before this one, and the request; it may raise.
        write: Makes the answer from the request, instead of the script.
    """

    before: Callable[[int, Asked], None] = lambda n, asked: None
    write: Callable[[Asked], str] | None = None
    asked: list[Asked] = field(default_factory=list)
    supports_response_schema = True
    supported_params = frozenset({"temperature", "max_tokens", "response_format", "seed"})

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> ScriptedEngine:
        return self

    def complete(self, request: lm15.Request) -> lm15.Response:
        asked = read_request(request)
        with self._lock:
            n = len(self.asked)
            self.asked.append(asked)
        self.before(n, asked)
        text = (self.write or scripted_answer)(asked)
        return text_response(text, "stop", request.model, len(asked.prompt.split()), len(text.split()))

    def close(self) -> None:
        pass


def read_request(request: lm15.Request) -> Asked:
    form = request.config.response_format or {}
    properties = form.get("json_schema", form).get("schema", {}).get("properties", {})
    step = "queries" if "support" in properties else "hypothesis" if "best_guess" in properties else "reader"
    system = request.system if isinstance(request.system, str) else "".join(p.text for p in request.system or ())
    messages = (("system", system), *((message.role, message.text or "") for message in request.messages))
    number = int(["-1", *re.findall(r"(?:number|of) (\d+)", messages[-1][1])][-1])
    options = properties.get("best_guess", properties.get("answer", {})).get("enum", ())
    prompt, config = "\n".join(text for _, text in messages), request.config
    return Asked(step, number, prompt, tuple(options), properties, messages, config.seed, config.temperature or 0.0)


def scripted_answer(asked: Asked) -> str:
    n = asked.number
    if asked.step == "hypothesis":
        guess = asked.options[0]
        values: dict[str, Any] = {"reasoning": "r", "confirming_evidence": ["c"], "discriminating_features": ["d"]}
        return json.dumps({**values, "best_guess": guess})
    if asked.step == "queries":
        return json.dumps({"support": f"{KEY} of {n}", "distinguish": f"other of {n}", "verify": f"another of {n}"})
    last = asked.prompt.rsplit("passages:", 1)[-1]
    right = f"right {n}" if f"Decides {n}." in last else f"wrong {n}"
    return json.dumps({"answer": right if not asked.options or right in asked.options else asked.options[0]})


class World:
    """Questions with one deciding passage each, and a retriever whose finds depend on the words of the query.

    Args:
        winner: Which query finds the deciding passage first: ``rewriting`` (one with the key word), ``plain`` (the
            question), ``both``, or ``deep`` (one with the key word, but only third).
    """

    def __init__(self, winner: str = "rewriting", size: int = 18) -> None:
        self.winner = winner
        self.questions = [
            Question(
                f"q{n}",
                f"What of number {n}?",
                (f"wrong {n}", f"right {n}") if n % 2 else (f"right {n}", f"wrong {n}"),
                f"right {n}",
                evidence={f"decides-{n}": Label.ENTAILED},
            )
            for n in range(size)
        ]
        self.deciding = {n: Passage(f"decides-{n}", f"Decides {n}.") for n in range(size)}
        self.others = [Passage(f"other-{n}", f"Nothing {n} to do with it.") for n in range(30)]
        self.known = {one.id: one for one in (*self.deciding.values(), *self.others)}
        self.searches: list[tuple[str, int]] = []
        third = size // 3
        self.splits = Splits(self.questions[:third], self.questions[third : 2 * third], self.questions[2 * third :])

    @property
    def fingerprint(self) -> str:
        return f"world {self.winner}"

    def __deepcopy__(self, memo: dict[int, Any]) -> World:
        return self

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        self.searches += [(query, k) for query in queries]
        return [[Hit(p, 1 / rank, rank) for rank, p in enumerate(self.find(query)[:k], start=1)] for query in queries]

    def find(self, query: str) -> list[Passage]:
        n = int(re.findall(r"\d+", query)[0])
        found = [self.others[(n * 7 + len(query) + step) % len(self.others)] for step in range(10)]
        finds = (KEY in query and self.winner != "plain") or ("What of" in query and self.winner in {"plain", "both"})
        if finds:
            found.insert(2 if self.winner == "deep" else 0, self.deciding[n])
        return found

    def get(self, ids: Sequence[str]) -> list[Passage]:
        return [self.known[id] for id in ids]

    def __contains__(self, id: object) -> bool:
        return id in self.known

    def program(self, technique: str = "hcqr", reader: str | None = "multiple_choice", **knobs: Any) -> Any:
        return make_program(technique, self, reader=reader, **({"max_passages": 3} | knobs))


@pytest.fixture(scope="session")
def make_world() -> type[World]:
    return World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture(scope="session")
def make_engine() -> type[ScriptedEngine]:
    return ScriptedEngine


@pytest.fixture(scope="session")
def scripted() -> Callable[[Asked], str]:
    """The answer of the script to a request."""
    return scripted_answer


class Page(HTMLParser):
    """What a browser would make of a report."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.source = html
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.stack: list[str] = []
        self.scripts: list[tuple[str | None, str]] = []
        self.tables: list[list[list[str]]] = []
        self.parts: dict[str, str] = {}
        self.text = ""
        self.feed(self.source)
        self.close()
        self.parts = {name: " ".join(text.split()) for name, text in self.parts.items()}
        assert not self.stack

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in ("meta", "input", "br", "wbr"):
            self.stack.append(tag)
        if tag == "script":
            self.scripts.append((dict(attrs).get("id"), ""))
        elif tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        elif tag == "h2":
            self.heading = ""

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag
        if tag == "h2":
            self.parts[self.heading] = ""

    def handle_data(self, data: str) -> None:
        if self.stack and self.stack[-1] == "script":
            self.scripts[-1] = (self.scripts[-1][0], self.scripts[-1][1] + data)
            return
        if "style" in self.stack:
            return
        self.text += data
        if "h2" in self.stack:
            self.heading += data
        elif "section" in self.stack:
            self.parts[self.heading] += data
        if {"td", "th"} & set(self.stack):
            self.tables[-1][-1][-1] += data

    def json(self, name: str) -> Any:
        text = dict(self.scripts)[name]
        return json.loads(text if text.startswith("{") else gzip.decompress(base64.b64decode(text)))

    def prompts(self) -> list[dict[str, Any]]:
        """What stands in the page of prompts, a question each."""
        packed = dict(self.scripts)["report-prompts"]
        return [json.loads(line) for line in gzip.decompress(base64.b64decode(packed)).splitlines()] if packed else []

    def check(self) -> None:
        """Nothing of the data is markup, nothing is fetched, every figure is drawn and told."""
        assert not {"img", "iframe", "link", "object", "embed", "form", "base"} & {tag for tag, _ in self.tags}
        assert [name for name, _ in self.scripts] == ["report-summary", "report-data", "report-prompts", None]
        attributes = [(name, value) for _, attrs in self.tags for name, value in attrs.items()]
        assert not any(name.startswith("on") for name, _ in attributes)
        assert not any(name in ("src", "srcset", "action", "data", "poster") for name, _ in attributes)
        assert {value for name, value in attributes if name == "href"} <= {
            f"#{value}" for name, value in attributes if name == "id"
        }
        (policy,) = [attrs["content"] for tag, attrs in self.tags if tag == "meta" and "http-equiv" in attrs]
        assert policy.startswith("default-src 'none'; script-src 'unsafe-inline'")
        assert not re.search(r"url\(|@import|https?://|fetch\(|XMLHttpRequest|import\(|<!--", self.source)
        assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff]", self.source)
        assert not re.search("[\u2028\u2029]", "".join(text for _, text in self.scripts))
        assert not re.search(r"\bnan\b", self.source.partition('"use strict"')[0], re.IGNORECASE)
        assert {attrs.get("scope") for tag, attrs in self.tags if tag == "th"} <= {"col", "row"}
        ids = [value for name, value in attributes if name == "id"]
        assert len(ids) == len(set(ids))
        for attrs in (attrs for _, attrs in self.tags if attrs.get("class") == "figure"):
            assert attrs["role"] == "img"
            assert len(attrs["aria-label"]) > 20
        assert len([tag for tag, _ in self.tags if tag == "svg"]) == len(self.figures)
        self.questions()

    @property
    def figures(self) -> list[str]:
        """Their ids."""
        return [attrs["id"] for _, attrs in self.tags if attrs.get("class") == "figure"]

    def drawn(self, name: str) -> list[str]:
        """All texts of a figure: what is written in it, and what is said of its marks."""
        svg = self.source.split(f'id="{name}"')[1].split("<svg")[1].split("</svg>")[0]
        return [unescape(one) for one in re.findall(r"<(?:text|title)[^>]*>([^<]*)<", svg)]

    def questions(self) -> list[dict[str, Any]]:
        """What stands behind each question, its numbers resolved."""
        data = self.json("report-data")
        texts, passages = data["texts"], [data["texts"][one["id"]] for one in data["passages"]]

        def row(given: list[Any]) -> dict[str, Any]:
            one = dict(zip("sqpln", given, strict=False)) | given[5]
            told = dict(
                one,
                p=[passages[key] for key in one["p"]],
                l=[None if n == "-" else data["labels"][int(n)] for n in one["l"]],
            )
            told["q"] = [(texts[role], texts[query]) for role, query in one["q"]]
            told |= {name: texts[one[name]] for name in ("a", "m") if name in one}
            return told | {"c": [passages[key] for key in one.get("c", ())]}

        return [
            {"id": texts[one["id"]], "q": texts[one["q"]], "answers": [texts[key] for key in one["answers"]]}
            | {"evidence": {passages[key]: data["labels"][label] for key, label in one["evidence"]}}
            | {"rows": [row(each) for each in one["rows"]]}
            for one in data["questions"]
        ]


@pytest.fixture(scope="session")
def read_page() -> type[Page]:
    """Reads a report as a browser would."""
    return Page


@pytest.fixture
def store(tmp_path: Path) -> Any:
    opened = Store(tmp_path / "home" / "store.sqlite")
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def make_lm() -> Callable[..., dspy.LM]:
    """An LM over a scripted engine: ``lm.engine.inner.asked`` holds its requests, ``lm.engine.ledger`` its cost."""

    def make(
        engine: ScriptedEngine | None = None,
        *,
        store: Any = None,
        max_calls: int | None = None,
        budget: Any = None,
        ledger: Ledger | None = None,
        identity: str = "scripted",
        **limits: Any,
    ) -> dspy.LM:
        guarded = LMEngine(
            engine or ScriptedEngine(),
            identity=identity,
            store=store,
            ledger=ledger,
            limits=Limits(**{"max_attempts": 1, "backoff": 0.0, "max_wait": 0.0, **limits}),
            budget=budget if max_calls is None else Budget(None, "test", calls=max_calls),
        )
        both = {"engine": guarded, "async_engine": AsyncLMEngine(guarded)}
        return dspy.LM(f"{identity}/model", **both, cache=False, num_retries=0)

    return make


@pytest.fixture(scope="session")
def write() -> Callable[..., ArtifactManifest]:
    """Writes a program, HCQR as it comes if none is given, as an artifact."""

    def write_to(path: Path, program: Any = None, **changes: Any) -> ArtifactManifest:
        given = {
            "lm": "scripted/model",
            "embedder": None,
            "engine": None,
            "reranker": None,
            "collection": None,
            "fingerprint": "f",
            "created": "2026-01-02",
            "made": {"dev": {"value": 0.25, "n": 4}},
            "golden": [Golden(question="What of number 1?", options=["a", "b"], answer="a", passages=["p"])],
            "card": "# card\n",
        }
        program = program or make_program("hcqr", lambda query, k: [], reader="multiple_choice")
        return write_artifact(path, program, **(given | changes))

    return write_to


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An empty folder."""
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


@pytest.fixture
def artifact(place: Path, write: Callable[..., ArtifactManifest]) -> Path:
    """An artifact, alone in that folder."""
    write(place / "a")
    return place / "a"


@pytest.fixture
def no_connection(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Refuses every connection, and fails the test that tried one."""
    tried: list[Any] = []

    def connect(self: Any, address: Any) -> None:
        tried.append(address)
        raise OSError(f"no connection to {address} in this test")

    monkeypatch.setattr("socket.socket.connect", connect)
    yield
    assert tried == []


@pytest.fixture
def optimizers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Two optimizers, ``cheap`` and ``dear``, in addition to the real ones."""
    k = Knob("k", 4, "how many", low=1, high=10_000)

    def cheap(work: Any) -> Any:
        return work.program

    def dear(work: Any) -> Any:
        return work.program

    found = {one.__name__: Optimizer(one, lambda n, predictors, given: Bound(n), (k,)) for one in (cheap, dear)}
    for name, one in found.items():
        monkeypatch.setitem(OPTIMIZERS, name, one)  # type: ignore[arg-type]
    return found


@pytest.fixture(scope="session")
def study_of() -> Callable[..., StudySpec]:
    """A study of these techniques, on the sample."""

    def make(techniques: Any = None, **changes: Any) -> StudySpec:
        given = {"name": "s", "questions": "sample", "collection": "c", "techniques": techniques or {"hcqr": {}}}
        return read_spec({**given, **changes})

    return make


MAGIC = "Name the key."
"""Instructions with these words make every query find what decides."""

WRITTEN = {
    "proposed_instruction": MAGIC,
    "proposed_prefix_for_output_field": "Answer:",
    "new_instruction": MAGIC,
    "observations": "They ask for numbers.",
    "summary": "Numbers.",
    "program_description": "It searches.",
    "module_description": "It writes queries.",
}


def written(asked: Any, script: Callable[[Any], str]) -> str:
    """Instructions, and queries that find for even numbers, and for others after them or a lucky sample."""
    names, n = set(asked.properties), asked.number
    if "module_advice" in asked.prompt and not names:
        return json.dumps({"discussion": "d", "module_advice": {"technique.write_queries": MAGIC}})
    if asked.proposes:
        return json.dumps({name: f"{text} ({asked.seed})" for name, text in WRITTEN.items() if name in names})
    if "support" in names:
        told = MAGIC in asked.messages[0][1] or any(role == "assistant" for role, _ in asked.messages)
        lucky = bool(asked.temperature) and (asked.seed or 0) % 2 == 1
        word = "key" if n % 2 == 0 or told or lucky else "other"
        return json.dumps({"support": f"{word} of {n}", "distinguish": f"x of {n}", "verify": f"y of {n}"})
    return script(asked)


@pytest.fixture
def writing(make_engine: Any, scripted: Callable[[Any], str]) -> Callable[..., Any]:
    """Engines for which even questions are easy; the others need a demonstration, the magic words or luck."""
    return lambda **given: make_engine(**{"write": lambda asked: written(asked, scripted), **given})


@pytest.fixture
def asked_of() -> Callable[[Any], Sequence[Any]]:
    """What an LM over a scripted engine was asked."""
    return lambda lm: list(lm.engine.inner.asked)

from __future__ import annotations

import hashlib
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from querywright.cli import show
from querywright.cli.main import run
from querywright.models.embedder import EMBEDDED_DIMENSION
from querywright.models.store import open_store

TOPICS = {
    "juice": "Fast sugar such as juice or glucose tablets comes first when blood sugar is very low.",
    "feet": "Look at both feet every evening and show any new sore to the care team soon.",
    "cuff": "A cuff that is too small makes the pressure read too high; measure the arm first.",
    "salt": "Bread and ready meals bring most of the salt; fresh food brings little of it.",
    "walk": "A walk of thirty minutes on most days lowers blood pressure a little.",
    "lenses": "The eye clinic looks at the retina once a year, also when sight is good.",
}


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    status: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)


class WordModel:
    """Texts as bags of hashed words: near when they share words."""

    def encode(self, texts: list[str], **_: Any) -> np.ndarray:
        rows = np.full((len(texts), EMBEDDED_DIMENSION), 0.01, dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            for word in re.findall(r"\w+", text.lower()):
                row[int(hashlib.sha256(word.encode()).hexdigest(), 16) % EMBEDDED_DIMENSION] += 1
        return rows


SCRIPTED = runpy.run_path(str(Path(__file__).parents[1] / "scripted_server.py"))
prompt, fill_in = SCRIPTED["prompt"], SCRIPTED["fill_in"]


class ScriptedServer(SCRIPTED["ScriptedServer"]):  # type: ignore[misc]
    """An OpenAI-compatible server that fills in the fields which the prompt names, or refuses, and takes its time."""

    def __init__(self) -> None:
        super().__init__([self._answered])
        self.requests = self.bodies
        self.server_port = self._server.server_port
        self.begin()

    def begin(self) -> None:
        """Answer as it does at first, and forget who asked."""
        self.status, self.refusal, self.delay = 200, 401, 0.0
        self.refuses: Callable[[dict[str, Any]], bool] = lambda body: False
        self.reply: Callable[[dict[str, Any]], str] = fill_in
        self.bodies.clear()
        self.headers.clear()

    def _answered(self, body: dict[str, Any]) -> dict[str, Any]:
        time.sleep(self.delay)
        status = self.refusal if self.refuses(body) else self.status
        if status != 200:
            key = self.headers[-1].get("Authorization", "")
            return {"status": status, "body": {"error": {"message": f"refused {key}", "type": "x", "code": "x"}}}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        return {"answer": self.reply(body), "usage": usage}

    @property
    def address(self) -> str:
        return str(self.url)

    @property
    def lm(self) -> list[str]:
        return ["--lm", "openai/scripted", "--api-base", self.address, "--api-key-env", "SCRIPTED_KEY"]


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[ScriptedServer]:
    if "artifact" in request.fixturenames:  # what was answered is kept by the address
        scripted = request.getfixturevalue("compiled_once")[1]
        scripted.begin()
        yield scripted
        return
    scripted = ScriptedServer()
    yield scripted
    scripted.close()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder of the test's own, an embedder without a model, and a key."""
    return work_in(tmp_path, monkeypatch)


def work_in(place: Path, patch: pytest.MonkeyPatch) -> Path:
    """Go there, to a working folder ``home``."""
    patch.setenv("QUERYWRIGHT_HOME", str(place / "home"))
    patch.setenv("SCRIPTED_KEY", "sk-never-to-be-printed-1234567890")
    patch.chdir(place)

    # Embedders keep their names, stores and checks; only the model behind them is a small one.
    patch.setattr("querywright.models.embedder._loader", lambda *_: WordModel)
    return place / "home"


@pytest.fixture
def cli(home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs a command in this process."""

    def call(*arguments: object, width: int = 80) -> Result:
        monkeypatch.setattr(show.out, "width", width)
        capsys.readouterr()
        status = run([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return Result(status, printed.out, printed.err)

    return call


@pytest.fixture
def ok(cli: Callable[..., Result]) -> Callable[..., Result]:
    """Runs a command in this process that must succeed."""

    def call(*arguments: object, **options: Any) -> Result:
        done = cli(*arguments, **options)
        assert done.status == 0, done.out + done.err
        return done

    return call


def write_lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_passages(folder: Path) -> Path:
    texts = [{"id": f"p-{topic}", "title": topic, "text": text} for topic, text in TOPICS.items()]
    return write_lines(folder / "passages.jsonl", texts)


@pytest.fixture
def passages(tmp_path: Path) -> Path:
    return write_passages(tmp_path)


def question_rows(copies: int = 3) -> list[dict[str, Any]]:
    """Questions whose words are those of one passage; the right option is that passage's topic."""
    names = list(TOPICS)
    return [
        {
            "id": f"q-{topic}-{copy}",
            "question": f"Number {copy}: what is said about {' '.join(text.split()[:7])}?",
            "options": [names[place - 1], names[place - 2], topic],
            "answer": topic,
            "evidence": {f"p-{topic}": "ENTAILED"},
        }
        for copy in range(copies)
        for place, (topic, text) in enumerate(TOPICS.items())
    ]


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "questions.jsonl", question_rows())


@pytest.fixture
def collection(request: pytest.FixtureRequest, cli: Callable[..., Result], passages: Path) -> str:
    if "artifact" in request.fixturenames:  # it brings its collection
        request.getfixturevalue("artifact")
    else:
        assert cli("index", "tiny", passages).status == 0
    return "tiny"


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    """The questions as plain data."""
    return question_rows()


@pytest.fixture
def sent() -> Callable[[dict[str, Any]], str]:
    """All that a request said, in one text."""
    return lambda body: "\n".join(prompt(body, role) for role in ("system", "user", "assistant"))


@pytest.fixture
def wrong(cli: Callable[..., Result], server: ScriptedServer) -> Callable[..., str]:
    """Runs a command that must fail before any LM call; gives its message in one line."""

    def call(*arguments: object) -> str:
        before = len(server.requests)
        done = cli(*arguments)
        assert (done.status, done.out) == (2, ""), done
        assert "Traceback" not in done.err
        assert len(server.requests) == before
        return " ".join(done.err.split())

    return call


@pytest.fixture
def rows_of_questions() -> Callable[[int], list[dict[str, Any]]]:
    """The questions as plain data, so many copies of each."""
    return question_rows


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, list[Any]], Path]:
    """Writes JSON lines into a file of that name."""
    return lambda name, data: write_lines(tmp_path / name, data)


@pytest.fixture
def outside() -> Callable[..., Result]:
    """Runs a command in a process of its own, as a user does."""

    def call(*arguments: object, timeout: float = 300, **environment: str) -> Result:
        done = subprocess.run(
            [sys.executable, "-m", "querywright", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, **environment},
            check=False,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    return call


@pytest.fixture
def compiled(
    ok: Callable[..., Result], questions: Path, collection: str, server: ScriptedServer
) -> Callable[..., Path]:
    """Compiles a technique in little time, and gives the artifact's folder."""

    def call(technique: str, out: str, *more: object, data: Path = questions, sizes: str = "3,4,4") -> Path:
        more = (*more, *(() if "--trials" in more else ("--trials", "2")))
        ok(*compile_command(technique, data, out, sizes), *more, *server.lm)
        return Path(out)

    return call


def compile_command(technique: str, data: Path, out: str, sizes: str = "3,4,4") -> list[str]:
    given = {"--data": data, "--collection": "tiny", "--out": out, "--sizes": sizes, "--threads": 2}
    return ["compile", technique, *(str(word) for pair in given.items() for word in pair), "--json"]


@pytest.fixture(scope="session")
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, ScriptedServer]]:
    """A folder with a collection and a program that was compiled on it, and the LM that was asked."""
    place, scripted = tmp_path_factory.mktemp("compiled"), ScriptedServer()
    with pytest.MonkeyPatch.context() as patch:
        home = work_in(place, patch)
        data = write_lines(place / "questions.jsonl", question_rows())
        assert run(["index", "tiny", str(write_passages(place))]) == 0
        assert run([*compile_command("hcqr", data, "artifacts/made"), "--trials", "2", *scripted.lm]) == 0
        open_store(home).close()
    yield place, scripted
    scripted.close()


@pytest.fixture
def artifact(compiled_once: tuple[Path, ScriptedServer], home: Path, questions: Path, tmp_path: Path) -> Path:
    """A program compiled with the scripted LM, beside the collection."""
    for name in ("home", "artifacts"):
        shutil.copytree(compiled_once[0] / name, tmp_path / name)
    return Path("artifacts/made")


@pytest.fixture
def more_questions(home: Path, tmp_path: Path) -> Path:
    return write_lines(tmp_path / "more.jsonl", question_rows(8))


@pytest.fixture
def study_file(
    cli: Callable[..., Result], passages: Path, server: ScriptedServer, tmp_path: Path, more_questions: Path
) -> Callable[..., Path]:
    """Writes a study of two techniques over a small collection, and gives its path."""
    assert cli("index", "small", passages).status == 0

    def write(name: str = "small", **changes: Any) -> Path:
        spec = {
            "name": name,
            "questions": str(more_questions),
            "collection": "small",
            "sizes": [4, 8, 6],
            "lm": "openai/scripted",
            "api_base": server.address,
            "api_key_env": "SCRIPTED_KEY",
            "techniques": {
                "rag_fusion": {"knobs": {"n_queries": {"low": 1, "high": 3}, "top_k": [1, 2, 4]}, "search": "named"},
                "step_back": {"search": "named", "knobs": {"top_k": [1, 2]}},
            },
            "fixed": {"max_passages": 2},
            "trials": 9,
            "threads": 2,
            **changes,
        }
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(spec), encoding="utf-8")
        return path

    return write


@pytest.fixture
def studies() -> Iterator[Any]:
    """Studies in processes of their own: see ``study_processes.py``."""
    tools = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("study_processes.py"))))
    yield tools
    tools.Command.end_all()


@pytest.fixture
def undisturbed(
    cli: Callable[..., Result], home: Path, server: ScriptedServer, studies: Any, tmp_path: Path
) -> Callable[..., Path]:
    """Runs a study in this process from end to end; what the LM answered is forgotten, so that others ask again."""

    def call(file: Path) -> Path:
        out = tmp_path / f"whole-{file.stem}"
        done = cli("study", "run", file, "--out", out)
        assert done.status == 0, done.err
        studies.forget_answers(home)
        server.requests.clear()
        return out

    return call

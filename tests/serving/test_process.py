"""``querywright serve`` as a process: started, asked, told by signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from querywright.optimize.artifacts.files import write_artifact
from querywright.programs import make_program

VARIABLE, TOKEN = "SERVE_TOKEN", "a-token-for-the-tests-only"


def write(folder: Path) -> str:
    manifest = write_artifact(
        folder, make_program("closed_book", reader="short_answer"), lm="openai/scripted", embedder=None,
        collection=None, engine=None, reranker=None, fingerprint=None, created="2026-01-02", made={}, golden=[],
        card="# card\n",
    )  # fmt: skip
    return manifest.id


class Served:
    """The command, and what it says."""

    def __init__(self, home: Path, url: str, *arguments: str, lm: str | None = "openai/scripted") -> None:
        command = [sys.executable, "-m", "querywright", "serve", *arguments, "--port", "0", "--home", str(home)]
        command += ["--api-base", url, "--api-key-env", "LM_KEY", *([] if lm is None else ["--lm", lm])]
        environment = {**os.environ, "LM_KEY": "none", VARIABLE: TOKEN}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        self.lines: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.url = str(self.line(event="listening")["url"])
        self.client = httpx.Client(base_url=self.url, timeout=300, headers={"Authorization": f"Bearer {TOKEN}"})

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(json.loads(line))

    def line(self, seconds: float = 300, **values: str) -> dict[str, Any]:
        """The last line with these values, once it is there."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = [line for line in self.lines if values.items() <= line.items()]
            if found:
                return found[-1]
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.02)
        raise AssertionError(f"no line with {values}: {self.lines}")

    def tell(self, sig: int) -> None:
        self.process.send_signal(sig)

    def end(self) -> tuple[int, str]:
        status = self.process.wait(300)
        self._reader.join(60)
        assert self.process.stderr is not None
        return status, self.process.stderr.read()


@pytest.fixture
def lm(chat_server: Callable[..., Any]) -> Any:
    return chat_server('{"answer": "blue"}')


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    made: list[Served] = []

    def served(url: str, *arguments: str, **given: Any) -> Served:
        made.append(Served(tmp_path / "home", url, *arguments, **given))
        return made[-1]

    yield served
    for one in made:
        one.client.close()
        one.process.kill()
        one.process.communicate()


def test_it_serves_and_stops_when_what_is_under_way_is_answered(
    tmp_path: Path, lm: Any, start: Callable[..., Served]
) -> None:
    go = threading.Event()
    version = write(tmp_path / "colour")
    served = start(lm.url, str(tmp_path / "colour"), "--token-env", VARIABLE)
    assert served.client.post("/ask", json={"question": "Which colour?"}).json()["answer"] == "blue"
    assert served.client.get("/openapi.json").json()["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert served.client.get("/health").json()["version"] == version

    lm._steps = (lambda body: go.wait(60) and '{"answer": "green"}',)
    answers: list[Any] = []
    asking = threading.Thread(
        target=lambda: answers.append(served.client.post("/ask", json={"question": "And now?"}))
    )  # fmt: skip
    count = lm.count
    asking.start()
    while lm.count == count:
        time.sleep(0.01)
    served.tell(signal.SIGINT)
    served.line(message="Shutting down")
    with pytest.raises(httpx.ConnectError):
        httpx.get(served.url + "/health")
    go.set()
    asking.join(60)
    assert answers[0].json()["answer"] == "green"
    status, said = served.end()
    assert status == 0
    assert "Traceback" not in said
    assert not any("colour?" in json.dumps(line) or TOKEN in json.dumps(line) for line in served.lines)


@pytest.mark.slow
def test_grace_ends_and_a_second_signal_ends_at_once(tmp_path: Path, lm: Any, start: Callable[..., Served]) -> None:
    go = threading.Event()
    lm._steps = (lambda body: go.wait(60) and '{"answer": "green"}',)
    write(tmp_path / "colour")
    for grace, signals, status in (("0.3", [signal.SIGTERM], 0), ("30", [signal.SIGTERM, signal.SIGTERM], 130)):
        served = start(lm.url, str(tmp_path / "colour"), "--grace", grace)
        answers: list[Any] = []

        def ask(served: Served = served, answers: list[Any] = answers) -> None:
            try:
                answers.append(served.client.post("/ask", json={"question": "And now?"}).status_code)
            except httpx.HTTPError:
                answers.append(None)

        count = lm.count
        asking = threading.Thread(target=ask)
        asking.start()
        while lm.count == count:
            time.sleep(0.01)
        for one in signals:
            served.tell(one)
            served.line(message="Shutting down")
        assert served.end()[0] == status
        asking.join(60)
        assert answers == [503]
    go.set()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--host", "0.0.0.0"], "--token-env"),
        (["--token-env", "NOT_SET_ANYWHERE"], "NOT_SET_ANYWHERE"),
        (["--deadline", "0"], "deadline"),
    ],
)
def test_what_cannot_be_served_is_told(
    arguments: list[str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from querywright.cli.main import run

    assert run(["serve", str(tmp_path), *arguments]) == 2
    assert named in capsys.readouterr().err

"""Every test has its own workspace and no network; the embedded model is re-encoded once per run."""

from __future__ import annotations

import os
import runpy
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

os.environ["HF_HUB_OFFLINE"] = "1"  # read by huggingface_hub on import
os.environ.setdefault("GOMP_SPINCOUNT", "100")  # read by torch on import; keeps waiting threads from occupying cores
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "true"  # read by litellm on import, which otherwise downloads its prices

# A slow example shows only that the machine is busy, and nothing about the code under test.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


@pytest.fixture(scope="session", autouse=True)
def _interrupts_reach_processes() -> None:
    """Handle Ctrl-C: a test run started in the background ignores it, and so would every process that it starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def model_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the re-encoded model, shared by all processes in a run."""
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "models"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(autouse=True)
def working_folder(
    tmp_path_factory: pytest.TempPathFactory, model_files: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    folder = tmp_path_factory.mktemp("working-folder")
    (folder / "models").symlink_to(model_files)
    monkeypatch.setenv("QUERYWRIGHT_HOME", str(folder))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return folder


@pytest.fixture
def chromium(tmp_path: Path) -> Callable[..., str]:
    """Return a function that renders a page in Chromium and returns the HTML; without Chromium, the test is skipped."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("there is no chromium")

    def look(page: str, *flags: str) -> str:
        command = [found, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'browser'}"]
        done = subprocess.run([*command, *flags, "--dump-dom", page], capture_output=True, text=True, timeout=300)
        assert "</html>" in done.stdout or "</pre>" in done.stdout, done.stderr[-500:]
        return done.stdout

    return look


@pytest.fixture
def server() -> Iterator[Any]:
    """The scripted LM server from the command-line tests, for API tests."""
    scripted = runpy.run_path(str(Path(__file__).parent / "cli" / "conftest.py"))["ScriptedServer"]()
    yield scripted
    scripted.close()


@pytest.fixture
def chat_server() -> Iterator[Callable[..., Any]]:
    """Return a function that starts OpenAI-compatible servers with scripted answers; see ``scripted_server.py``."""
    server_class = runpy.run_path(str(Path(__file__).with_name("scripted_server.py")))["ScriptedServer"]
    servers: list[Any] = []

    def start(*steps: Any) -> Any:
        servers.append(server_class(steps))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def remote(chat_server: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Return a function that creates an LM and its scripted server; there is no delay between attempts."""
    from querywright.models.circuit_breaker import Limits
    from querywright.models.lm import engine_of, resolve_lm

    opened: list[Any] = []

    def make(*steps: Any, **options: Any) -> Any:
        server = chat_server(*steps)
        limits = Limits(**{"backoff": 0, "max_wait": 0, **options.pop("limits", {})})
        given = {"api_base": server.url, "api_key": "sk-canary-0123456789abcdef", "timeout": 60.0, "limits": limits}
        lm = resolve_lm("openai/x", **{**given, **options})
        opened.append(engine_of(lm))
        return lm, server

    yield make
    for engine in opened:
        engine.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Any]:
    """A private PostgreSQL server; see ``postgres.py`` in the tests for studies."""
    module = runpy.run_path(str(Path(__file__).with_name("optimize") / "study" / "postgres.py"))
    reason = module["missing"]()
    if reason:
        pytest.skip(reason)
    server = module["PostgresServer"]()
    yield server
    server.close()

"""Every test has a working folder of its own and no network; the embedded model is re-encoded once a run."""

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

os.environ["HF_HUB_OFFLINE"] = "1"  # it is read when huggingface_hub is imported
os.environ.setdefault("GOMP_SPINCOUNT", "100")  # read when torch is; tests that wait for a core by spinning take it
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "true"  # read when litellm is, which else downloads its prices

# An example that takes long says that the machine is busy, and nothing of what is tested.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


@pytest.fixture(scope="session", autouse=True)
def _interrupts_reach_processes() -> None:
    """A test run started in the background inherits that Ctrl-C is ignored, and so would every process it starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def model_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the re-encoded model lies, for all processes of a run."""
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
    """What Chromium makes of a page, as HTML; without Chromium the test is skipped."""
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
    """The scripted LM of the command line's tests, for tests of the API."""
    scripted = runpy.run_path(str(Path(__file__).parent / "cli" / "conftest.py"))["ScriptedServer"]()
    yield scripted
    scripted.close()


@pytest.fixture
def chat_server() -> Iterator[Callable[..., Any]]:
    """Starts OpenAI-compatible servers that answer from a script: see ``scripted_server.py``."""
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
    """An LM whose server answers from a script, and that server; nothing is waited between attempts."""
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
    """A private server: see ``postgres.py`` of the tests of studies."""
    module = runpy.run_path(str(Path(__file__).with_name("optimize") / "study" / "postgres.py"))
    reason = module["missing"]()
    if reason:
        pytest.skip(reason)
    server = module["PostgresServer"]()
    yield server
    server.close()

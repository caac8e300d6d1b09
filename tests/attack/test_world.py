"""What goes on around a run: full disks, no network, many threads, long runs, browsers."""

from __future__ import annotations

import http.server
import os
import random
import runpy
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from querywright.data.types import Passage
from querywright.retrieval.types import Hit

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
KILLS = runpy.run_path(str(Path(__file__).with_name("test_kills.py")))
globals().update({name: KILLS[name] for name in ("server", "forks", "template")})
SERVING = runpy.run_path(str(ROOT / "tests" / "serving" / "conftest.py"))
globals().update({name: SERVING[name] for name in ("run", "scripted", "retriever", "make", "token")})
page = runpy.run_path(str(ROOT / "tests" / "serving" / "test_page.py"))["page"]

FULL = "on a full or read-only disk, a command ends with a message and later resumes"
SEED = "the same seed produces the same artifact with any number of threads"
LEVEL = "memory, threads, and open files do not grow in a long run"
ALONE = "querywright starts and answers without a network or optional packages"
INERT = "hostile text in a page runs nothing and fetches nothing"
LM = "--lm openai/scripted --api-base {url} --api-key-env SCRIPTED_KEY"


@contextmanager
def small_disk(place: Path, size: str):
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no disk can be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("name", ["index", "compare", "compile", "questions build", "judge label"])
def test_disks_without_room_or_right(name, template, server, forks, tmp_path, times, attack):
    lm = LM.format(url=server.address)
    command = KILLS["COMMANDS"][name].format(lm=lm).split()
    used = sum(one.stat().st_size for one in template.rglob("*")) // 1024
    chance = random.Random(name)
    for turn in range(times(2)):
        with small_disk(tmp_path / str(turn), "64m") as disk:
            folder = Path(shutil.copytree(template, disk / "work"))
            how = f"size={used + chance.randrange(60, 700)}k" if turn % 2 else "ro"
            subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)
            # The output of the command goes elsewhere.
            ended, _, said = forks.run(folder, *command, said=tmp_path)
            attack.tried(FULL, ended in (0, 2, 3) and "Traceback" not in said, (name, how, ended, said[-600:]))
            subprocess.run(["mount", "-o", "remount,rw,size=64m", str(disk)], check=True)
            ended, _, said = forks.run(folder, *command, said=tmp_path)
            attack.tried(FULL, ended == 0, (name, how, "again", ended, said[-600:]))


def test_one_seed_and_any_number_of_threads(template, server, forks, tmp_path, times, attack):
    command = KILLS["COMMANDS"]["compile"].format(lm=LM.format(url=server.address)).split()
    made = {}
    for threads in [1, 4, 16] * times(1):
        folder = Path(shutil.copytree(template, tmp_path / f"{threads}-{len(made)}-{time.monotonic_ns()}"))
        status, _, said = forks.run(folder, *command, "--threads", threads)
        assert status == 0, said
        files = [(folder / "new" / name).read_bytes() for name in ("program.json", "golden.jsonl")]
        attack.tried(SEED, made.setdefault("first", files) == files, threads)


LONG = """
import os, runpy, sys, threading
from pathlib import Path
tools = runpy.run_path(sys.argv[1])
from querywright.data.types import Question
from querywright.models.circuit_breaker import Limits
from querywright.models.engine import AsyncLMEngine, LMEngine
from querywright.optimize.evaluate import evaluate
from querywright.programs import make_program
import dspy

class Quick(tools["ScriptedEngine"]):
    def complete(self, request):
        self.asked.clear()
        return super().complete(request)

engine = LMEngine(Quick(), identity="scripted", limits=Limits(max_attempts=1))
lm = dspy.LM("scripted/model", engine=engine, async_engine=AsyncLMEngine(engine), cache=False, num_retries=0)
program = make_program("closed_book", None, reader="short_answer")

def state():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20, threading.active_count(), len(os.listdir("/proc/self/fd"))

rounds = int(sys.argv[2])
for turn in range(rounds):
    asked = [f"What of number {turn * 500 + n}? " + "x" * 2000 for n in range(500)]
    asked = [Question(f"q{turn}-{n}", text, answer="a") for n, text in enumerate(asked)]
    found = evaluate(program, asked, lm=lm, name="closed book", threads=8)
    assert len(found.rows) == 500 and not any(row.failure for row in found.rows)
    if turn == max(0, rounds // 5):
        first = state()
last = state()
print(rounds * 500, *(round(b - a, 1) for a, b in zip(first, last)))
"""


def test_a_long_run(times, attack):
    """At scale 1, 4,000 questions in one process; 100,000 at scale 25."""
    tools = str(ROOT / "tests" / "optimize" / "conftest.py")
    done = subprocess.run([sys.executable, "-c", LONG, tools, str(times(8))], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    _, memory, threads, files = map(float, done.stdout.split())
    attack.tried(LEVEL, memory <= 50 and threads <= 0 and files <= 0, done.stdout)


OPTIONAL = ("ray", "psycopg", "fastapi", "uvicorn", "prometheus_client", "langchain_core", "llama_index", "haystack",
            "mcp", "mlflow", "peft", "accelerate")  # fmt: skip


def test_no_network_and_no_optional_package(tmp_path, attack):
    if os.geteuid() or subprocess.run(["unshare", "-n", "true"], capture_output=True).returncode:
        pytest.skip("no network can be taken away here")
    hook = f"import sys\nsys.modules.update(dict.fromkeys({OPTIONAL!r}))\n"
    (tmp_path / "sitecustomize.py").write_text(hook)
    given = {"PYTHONPATH": f"{tmp_path}:{ROOT / 'src'}", "QUERYWRIGHT_HOME": str(tmp_path / "home")}
    given |= {"HF_HUB_OFFLINE": "0", "HOME": str(tmp_path)}
    for command in (
        "--help", "techniques", "index mine sample", "evaluate plain --data sample --collection mine --limit 2",
        "compare plain plain@bm25 --data sample --collection mine --reader none --out results",
        "artifact show artifacts/textbooks",
    ):  # fmt: skip
        done = subprocess.run(["unshare", "-n", sys.executable, "-m", "querywright", *command.split()], text=True,
                              capture_output=True, cwd=ROOT if "artifacts/" in command else tmp_path,
                              env={**os.environ, **given})  # fmt: skip
        attack.tried(ALONE, done.returncode == 0, (command, done.stderr[-800:]))


# Pages, in a browser.


@pytest.fixture
def canary(served):
    """A server that nobody should ask; counts who does."""
    seen = SimpleNamespace(asked=[])

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            seen.asked.append(self.path)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *args):
            pass

    server = served(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler))
    seen.url = f"http://127.0.0.1:{server.server_port}"
    return seen


def hostile(url: str) -> list[str]:
    run = f"document.title='OWNED';new Image().src='{url}/run'"
    return [
        f"<script>{run}</script>", f'"><img src="{url}/img" onerror="{run}">', f"</script><script>{run}</script>",
        f"<svg/onload={run}>", f'<iframe src="{url}/frame"></iframe>', f"<link rel=stylesheet href={url}/css>",
        f"</style><style>@import '{url}/style';</style>", f'<meta http-equiv="refresh" content="0;url={url}/meta">',
        f"<base href={url}/>", f'<a href="javascript:{run}" autofocus onfocus="{run}">x</a>', f"]]><!--{run}//--><b>",
        f"{{{{ constructor.constructor(`{run}`)() }}}} ${{{run}}}", "<!--<script>", "\u2028*/</textarea>" + run,
        f"%{{customdata}}<b onclick={run}><img src={url}/plotly>", f"' onmouseover='{run}' x='",
    ]  # fmt: skip


def test_hostile_texts_on_the_page_of_serve(page, retriever, scripted, canary, attack):
    texts = hostile(canary.url)
    retriever._hits = lambda query: [Hit(Passage(one, one, one), 0.5, rank) for rank, one in enumerate(texts, 1)]
    scripted.answer = lambda number: " ".join(texts)
    seen = page(" ".join(texts), retriever=retriever)
    assert seen.count("&lt;svg/onload=") > 3, "the page shows no answer"
    attack.tried(INERT, "<title>querywright</title>" in seen and not canary.asked, canary.asked)

"""Help, usage errors, exit statuses, and the list of techniques."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from querywright import __version__
from querywright.cli import main
from querywright.cli.main import every_command, run
from querywright.cli.options import DEFAULTS
from querywright.errors import BudgetError, InputError, OutageError

PARSE = runpy.run_path(str(Path(__file__).parents[1] / "markdown_blocks.py"))["parse"]


@pytest.fixture
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")


@pytest.mark.parametrize("command", [name for name, _ in every_command()])
def test_help_fits_80_columns_and_its_example_parses(cli, narrow, command):
    shown = cli(*command.split()[1:], "--help")
    assert shown.status == 0
    assert all(len(line) <= 80 for line in shown.out.splitlines())
    assert "list[" not in shown.out
    assert not re.search(r"--(no|empty)-(?!complete)", shown.out)
    text = " ".join(shown.out.partition("Example")[2].split()).split(" ╭")[0]
    PARSE(text[text.index("querywright ") :])
    assert text[text.index("querywright ") :].startswith(command)


def test_every_parameter_says_what_it_is():
    for name, command in every_command():
        for one in command.assemble_argument_collection(default_parameter=DEFAULTS, parse_docstring=True):
            assert one.parameter.help or one.name == "*", f"{name} {one.name}"


def test_help_names_every_command_and_the_exit_statuses(cli, narrow):
    shown = cli("--help")
    assert shown.status == 0
    places = [shown.out.index(f"│ {name} ") for name in main.COMMANDS]
    assert places == sorted(places)
    assert "3 the run was stopped" in " ".join(shown.out.split())
    assert all(len(line) <= 80 for line in shown.out.splitlines())


def test_help_imports_nothing_heavy():
    script = (
        "import sys\n"
        "from querywright.cli.main import run\n"
        "status = run(['--help'])\n"
        "heavy = {'dspy', 'torch', 'chromadb', 'optuna', 'datasets', 'pandas', 'scipy', 'numpy', 'xllamacpp',"
        " 'sentence_transformers', 'litellm', 'pydantic_ai'}\n"
        "sys.exit(status or ','.join(sorted(heavy & set(sys.modules))) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "techniques" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonsense"], 'Unknown command "nonsense"'),
        (["evalaute"], 'Did you mean "evaluate"?'),
        (["study", "nonsense"], 'Unknown command "nonsense"'),
        (["index"], "COLLECTION"),
        (["evaluate"], "QUESTIONS"),
        (["ask"], "QUESTION"),
        (["compile", "hcqr", "sample"], "--collection"),
        (["evaluate", "sample", "--threads", "0"], "--threads"),
        (["evaluate", "sample", "--threads", "two"], "--threads"),
        (["evaluate", "sample", "--limit", "0"], "--limit"),
        (["evaluate", "sample", "--max-failures", "2"], "--max-failures"),
        (["compile", "hcqr", "sample", "--collection", "x", "--out", "y", "--trials", "0"], "--trials"),
        (["evaluate", "sample", "--treads", "1"], "Did you mean --threads?"),
    ],
)
def test_wrong_usage_is_2_and_a_few_lines_on_standard_error(cli, arguments, said):
    done = cli(*arguments)
    assert done.status == 2
    assert done.out == ""
    assert said in done.err
    assert done.err.startswith("error: ")
    assert "--help says more" in done.err
    assert len(done.err.splitlines()) == 2


@pytest.mark.parametrize(("arguments", "said"), [([], "techniques"), (["study"], "resume")])
def test_no_command_shows_the_help(cli, arguments, said):
    done = cli(*arguments)
    assert done.status == 2
    assert said in done.out


@pytest.mark.parametrize("start", [["-m", "querywright"], ["-m", "querywright.cli.main"]])
def test_the_module_is_the_command(start):
    done = subprocess.run(
        [sys.executable, *start, "--version"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"querywright {__version__}\n", "")


def test_wrong_usage_in_a_process_of_its_own_shows_no_traceback(outside):
    done = outside("nonsense")
    assert done.status == 2
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("error", "status", "begins"),
    [
        (InputError("wrong"), 2, "error: wrong"),
        (BudgetError("limit"), 3, "stopped: limit"),
        (OutageError("away\n\n  far"), 3, "failed: away far"),
        (OSError(28, "No space left on device", "store"), 3, "failed: No space left on device: store"),
        (KeyboardInterrupt(), 130, "stopped; "),
    ],
)
def test_each_kind_of_end_has_its_status(cli, monkeypatch, error, status, begins):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("querywright.cli.techniques.technique_rows", fail)
    done = cli("techniques")
    assert done.status == status
    assert done.out == ""
    assert done.err.startswith(begins)
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("error", [ValueError("a bug"), OSError(9, "Bad file descriptor")])
def test_a_bug_is_not_hidden(monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("querywright.cli.techniques.technique_rows", fail)
    with pytest.raises(type(error)):
        run(["techniques"])


def test_main_ends_with_the_status(monkeypatch):
    ended = []
    monkeypatch.setattr(main, "_watch_for_interrupt", lambda: None)
    monkeypatch.setattr(main, "_end", ended.append)
    for status in (0, 2, 3, 130):
        monkeypatch.setattr(main, "run", lambda status=status: status)
        with pytest.raises(SystemExit) as caught:
            main.main()
        assert caught.value.code == status
    assert ended == [3, 130]  # threads may be at work still: these two end at once


def test_a_reader_that_goes_away_is_no_error():
    command = f"{shlex.quote(sys.executable)} -m querywright techniques --json | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "[\n"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("width", [80, 100, 160])
def test_techniques_are_readable_at_every_width(cli, width):
    from querywright.programs import TECHNIQUES

    shown = cli("techniques", width=width)
    lines = shown.out.splitlines()
    assert shown.status == 0
    assert all(len(line) <= width for line in lines)
    for name, technique in TECHNIQUES.items():
        assert f"{name}: {technique.TITLE}" in lines
        for knob in technique.KNOBS:
            assert any(line.startswith(f"  {knob.name} = {knob.default}: ") for line in lines)
    text = " ".join(shown.out.split())
    for knob in (knob for technique in TECHNIQUES.values() for knob in technique.KNOBS):
        if len(knob.help) < 40:
            assert f"{knob.help} ({knob.range})" in text


def test_techniques_as_json_and_as_markdown(cli):
    from querywright.programs import TECHNIQUES

    rows = json.loads(cli("techniques", "--json").out)
    assert [row["technique"] for row in rows] == list(TECHNIQUES)
    hcqr = next(row for row in rows if row["technique"] == "hcqr")
    assert hcqr["knobs"][0] == {
        "name": "max_passages", "default": 15, "range": "1 to 50", "help": "passages given to the reader at most",
    }  # fmt: skip
    lines = [line for line in cli("techniques", "--markdown").out.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(TECHNIQUES)
    assert {line.count(" | ") for line in lines} == {5}
    assert "`max_passages` (5)" in next(line for line in lines if line.startswith("| `plain`"))

"""Help, usage errors, exit statuses, what is printed, and the list of techniques."""

from __future__ import annotations

import io
import json
import math
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from querywright import __version__
from querywright.cli import main, show
from querywright.cli.main import every_command, run
from querywright.cli.options import DEFAULTS
from querywright.data import Question
from querywright.errors import BudgetError, InputError, OutageError
from querywright.optimize.evaluate import Evaluation, Row
from querywright.optimize.slices import slice_results
from querywright.programs import TECHNIQUES

PARSE = runpy.run_path(str(Path(__file__).parents[1] / "markdown_blocks.py"))["parse"]


@pytest.fixture
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")


@pytest.mark.parametrize("command", [name for name, _ in every_command()])
def test_help_fits_80_columns_and_its_example_parses(ok, narrow, command):
    shown = ok(*command.split()[1:], "--help")
    assert all(len(line) <= 80 for line in shown.out.splitlines())
    assert not re.search(r"list\[|--(no|empty)-(?!complete|browser)", shown.out)
    text = " ".join(shown.out.partition("Example")[2].split()).split(" ╭")[0]
    example = text[text.index("querywright ") :]
    PARSE(example)
    assert example.startswith(command)


def test_every_parameter_says_what_it_is():
    for name, command in every_command():
        for one in command.assemble_argument_collection(default_parameter=DEFAULTS, parse_docstring=True):
            assert one.parameter.help or one.name == "*", f"{name} {one.name}"


def test_help_names_every_command_and_the_exit_statuses(cli, narrow):
    shown = cli("--help")
    places = [shown.out.index(f"│ {name} ") for name in main.COMMANDS]
    assert (shown.status, places) == (0, sorted(places))
    assert "3 stopped (outage" in " ".join(shown.out.split())
    for arguments, said in (([], "techniques"), (["study"], "resume")):  # no command is no command
        shown = cli(*arguments)
        assert (shown.status, said in shown.out) == (2, True)


def test_help_imports_nothing_heavy():
    heavy = ["dspy", "torch", "chromadb", "optuna", "datasets", "pandas", "scipy", "numpy", "xllamacpp", "litellm"]
    script = (
        "import sys\nfrom querywright.cli.main import run\nstatus = run(['--help'])\n"
        f"sys.exit(status or ','.join(set({heavy}) & set(sys.modules)) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("evalaute", 'Did you mean "evaluate"?'),
        ("index", "COLLECTION"),
        ("evaluate plain --data sample --limit 0", 'Invalid value "0" for --limit. Must be >= 1'),
        ("evaluate --data sample --max-failures 2", "--max-failures"),
        ("evaluate --data sample --treads 1", "Did you mean --threads?"),
        ("evaluate --data sample --objective mrr@5", "Unknown option: --objective. Did you mean --metric?"),
        ("compile hcqr --data sample --out a --metric mrr@5", "Unknown option: --metric. Did you mean --objective?"),
    ],
)
def test_wrong_usage_is_2_and_a_few_lines_on_standard_error(cli, line, said):
    done = cli(*line.split())
    assert (done.status, done.out) == (2, "")
    assert len(done.err.splitlines()) <= 3
    assert done.err.startswith("error: ")
    assert said in done.err
    assert "for usage, run querywright" in done.err


def test_the_module_is_the_command():
    command = [sys.executable, "-m", "querywright", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"querywright {__version__}\n", "")


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
    def fail():
        raise error

    monkeypatch.setattr("querywright.cli.techniques.technique_rows", fail)
    done = cli("techniques")
    assert (done.status, done.out, done.err.count("\n")) == (status, "", 1)
    assert done.err.startswith(begins)


@pytest.mark.parametrize("error", [ValueError("a bug"), OSError(9, "Bad file descriptor")])
def test_a_bug_is_not_hidden(monkeypatch, error):
    def fail():
        raise error

    monkeypatch.setattr("querywright.cli.techniques.technique_rows", fail)
    with pytest.raises(type(error)):
        run(["techniques"])


def test_a_reader_that_goes_away_is_no_error():
    command = f"{shlex.quote(sys.executable)} -m querywright techniques --json | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=300, check=False)
    assert (done.stdout, "Traceback" in done.stderr) == ("[\n", False)


def test_techniques_are_readable_and_data(ok):
    lines = ok("techniques").out.splitlines()
    assert max(map(len, lines)) <= 80
    for name, technique in TECHNIQUES.items():
        assert f"{name}: {technique.TITLE}" in lines
        for knob in technique.KNOBS:
            assert any(line.startswith(f"  {knob.name} = {knob.default}: ") for line in lines)
    rows = {row["technique"]: row for row in ok("techniques", "--json").data}
    assert list(rows) == list(TECHNIQUES)
    assert rows["hcqr"]["knobs"][0] == {
        "name": "max_passages", "default": 15, "range": "1 to 50", "help": "maximum number of passages for the reader",
    }  # fmt: skip


@pytest.fixture
def printed(monkeypatch):
    """What ``show`` prints at a width."""

    def at(width, shown):
        file = io.StringIO()
        monkeypatch.setattr(show, "out", Console(file=file, width=width))
        shown()
        return file.getvalue()

    return at


def test_a_wide_table_is_divided_where_it_may_be():
    rows = [{"arm": "a", "x": "1" * 20, "y": "2" * 20, "z": "3" * 20}]
    assert show.fit(rows, 100) == [["arm", "x", "y", "z"]]
    assert show.fit(rows, 50) == [["arm", "x", "y"], ["arm", "z"]]
    long = [{"arm": "a name of an arm that is long", "won : lost": "1 : 2"}]
    assert show.fit(long, 22) == [["arm", "won : lost"]]  # words give way first
    assert show.fit([{"arm": "名前" * 5, "x": "1" * 30, "y": "2" * 35}], 80) == [["arm", "x"], ["arm", "y"]]
    assert show.fit([], 80) == []


def test_the_results_by_slice_fit_80_columns(printed):
    questions = [Question(f"q{n}", "?", slices={"topic": "feet and legs"}) for n in range(40)]
    arms = [
        Evaluation(name, tuple(Row(one.id, {"decision_useful": 1.0, "recall": 0.5}) for one in questions), 0.0)
        for name in ("plain@hybrid", "rrs@hybrid:select_pool=8")
    ]
    found = slice_results(arms, questions, ["topic"], baseline="plain@hybrid")
    lines = printed(80, lambda: show.show_slices([], found)).splitlines()
    assert [line.split() for line in lines if "won : lost" in line] == [
        ["slice", "arm", "mean", "won", ":", "lost", "p"]
    ] * 2
    assert max(map(len, lines)) <= 80


def test_no_number_is_cut_even_if_the_columns_that_identify_a_row_leave_too_little_room(printed):
    number = "100.0 [90, 100] (4 unscored)"
    rows = [{"slice": "topic = feet and legs (40)", "arm": "rrs@hybrid:select_pool=8", "mean": number, "p": "> 0.99"}]
    for width in (80, 40):
        text = printed(width, lambda: show.show_table("", rows))
        assert (text.count(number), text.count("> 0.99")) == (1, 1)


def test_a_column_that_is_empty_or_zero_throughout_is_left_out(printed):
    rows = [{"arm": "a", "x": "0%", "y": "-", "z": "0"}, {"arm": "b", "x": "-", "y": "1", "z": "0"}]
    assert printed(80, lambda: show.show_table("", rows)).split() == [*("arm", "y"), "─" * 6, *("a", "-", "b", "1")]


def test_facts_stand_a_line_each_and_nothing_in_them_passes_for_a_line_of_ours(printed):
    facts = {"a_b": 0.51234, "n": [1, 2], "none": None, "in": {"text": "one\ntwo"}, "demo": [{"x": 1}, {"x": 2}]}
    text = printed(80, lambda: show.show_facts({**facts, "evil": "x\nok: all\x1b[2J"}))
    assert text.splitlines() == [
        "a_b: 0.5123", "n: 1, 2", "none: -", "in", "  text: one two", "demo 1", "  x: 1", "demo 2", "  x: 2",
        "evil: x ok: all[2J",
    ]  # fmt: skip
    kept = printed(80, lambda: show.show_facts({"in": {"text": "one\ntwo"}}, lines=True))
    assert kept.splitlines() == ["in", "  text: one", f"{'':10}two"]
    assert show.clean("a\x1b[31mb\x07\x00c\rd\x7f\x9b\u2028e\tf\r\ng") == "a[31mbcd\u2028e\tf\ng"


def test_json_has_no_nan_and_only_signs_that_the_terminal_can_show(capsys, monkeypatch):
    show.print_json({"a": math.nan, "b": [math.inf, 1.5], "e": ("ü", True, None, 2)})
    text = capsys.readouterr().out
    assert json.loads(text) == {"a": None, "b": [None, 1.5], "e": ["ü", True, None, 2]}
    assert "ü" in text
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    show.print_json({"a": "ü", "b": "\ud800"})
    sys.stdout.flush()
    assert json.loads(raw.getvalue()) == {"a": "ü", "b": "\ud800"}


def test_what_holds_questions_is_its_owners_and_what_is_handed_on_is_not(ok, collection, questions, artifact, server):
    """Texts of questions are in results, labels, reports, studies and stores; an artifact is deployed by others."""
    fixed = ("--collection", collection, *server.lm)
    ok("compare", "plain", "--data", questions, "--limit", 2, "--out", "results", *fixed)
    ok("evaluate", "plain", "--data", questions, "--limit", 2, "--rows", "rows.jsonl", *fixed)
    ok("judge", "label", "--data", questions, "--limit", 1, "--out", "labels.jsonl", *fixed)
    ok("recording", "write", "shared.jsonl.gz", "--label", "a")
    private = [Path("rows.jsonl"), Path("labels.jsonl"), Path("results"), *Path("results").iterdir()]
    private += [path for path in Path("home").rglob("*") if path.suffix in {".jsonl", ".sqlite", ".json"}]
    handed_on = [Path("shared.jsonl.gz"), artifact, *artifact.iterdir()]
    assert [str(path) for path in private if path.stat().st_mode & 0o077] == []
    assert [str(path) for path in handed_on if not path.stat().st_mode & 0o044] == []
    Path("labels.jsonl").chmod(0o660)  # a file that people share stays theirs
    again = ("--limit", 1, "--collection", collection, "--out", "labels.jsonl", *server.lm)
    ok("judge", "label", "--data", questions, "--labels", "labels.jsonl", *again)
    assert Path("labels.jsonl").stat().st_mode & 0o777 == 0o660

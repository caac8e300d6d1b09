from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
import zipfile
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest

import querywright

ROOT = Path(__file__).parents[1]


def test_the_public_names_are_there():
    assert len(set(querywright.__all__)) == len(querywright.__all__)
    for name in querywright.__all__:
        assert callable(getattr(querywright, name)), name
    assert set(querywright.__all__) == set(querywright._HOME)
    assert set(dir(querywright)) >= {*querywright.__all__, "__version__"}


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = querywright.nothing  # type: ignore[attr-defined]
    with pytest.raises(ImportError):
        from querywright import nothing  # noqa: F401


def test_importing_it_costs_nothing():
    script = (
        "import sys; before = set(sys.modules); import querywright; dir(querywright)\n"
        "print(*sorted(name for name in set(sys.modules) - before if name.startswith('querywright.')))\n"
        "print(*sorted({'dspy', 'chromadb', 'numpy', 'torch', 'optuna', 'cyclopts'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == "\n\n"


@pytest.mark.parametrize(
    ("module", "category", "fails"),
    [
        ("querywright.models.lm", DeprecationWarning, True),
        ("page", UserWarning, True),
        ("pydantic._internal._generate_schema", UserWarning, False),
        ("scipy.stats", RuntimeWarning, True),
    ],
)
def test_a_warning_of_a_library_s_own_code_fails_no_test(module, category, fails):
    with pytest.raises(category) if fails else warnings.catch_warnings(record=True):
        warnings.warn_explicit("said", category, "file.py", 1, module)


def test_the_version_is_that_of_the_installed_package():
    assert querywright.__version__ == version("querywright")


def test_the_command_is_installed():
    from querywright.cli.main import main

    (command,) = entry_points(group="console_scripts", name="querywright")
    assert command.load() is main


def test_the_workspace(tmp_path, monkeypatch):
    from querywright.errors import InputError
    from querywright.home import home
    from querywright.models.store import open_store
    from querywright.workspace import Workspace

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("QUERYWRIGHT_HOME", raising=False)
    assert home().resolve() == tmp_path / ".querywright"
    assert (tmp_path / ".querywright").stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("QUERYWRIGHT_HOME", str(tmp_path / "named" / "deep"))
    assert home() == tmp_path / "named" / "deep"
    assert home(tmp_path / "given") == tmp_path / "given"
    assert home() == home()
    (tmp_path / "file").write_text("x")
    for wrong in ("file", "file/deep", "~nobody-of-this-name/x"):
        with pytest.raises(InputError, match=rf"cannot create the workspace '{wrong}' .*QUERYWRIGHT_HOME"):
            home(wrong)
        for opens in (open_store, Workspace.open):
            with pytest.raises(InputError, match=r"cannot create the workspace .*QUERYWRIGHT_HOME"):
                opens(wrong)


@pytest.fixture
def tree(tmp_path):
    """A copy of the source, in which no earlier build stands in for a file."""
    for name in ("src", "programs", "metrics", "optimize"):
        skip = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, tmp_path / "tree" / name, ignore=skip)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / "tree")
    return tmp_path / "tree"


@pytest.mark.slow
def test_an_editable_install_finds_a_new_file_of_a_root_folder_at_once(tree, tmp_path):
    install = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index")
    _run(*install, "--target", tmp_path / "site", "-e", tree)
    (tree / "metrics" / "brand_new.py").write_text("VALUE = 3\n")
    script = f"import site; site.addsitedir({str(tmp_path / 'site')!r})\n"
    script += "from querywright.metrics import brand_new, retrieval; print(brand_new.VALUE, retrieval.__file__)"
    value, file = _run(sys.executable, "-S", "-c", script, cwd=tmp_path).split()
    assert (value, file) == ("3", str(tree / "metrics" / "retrieval.py"))


@pytest.mark.slow
def test_a_wheel_holds_everything_and_works_where_there_is_nothing_else(tree, tmp_path):
    place, python = tmp_path / "empty", tmp_path / "venv" / "bin" / "python"
    _run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path, tree)
    (wheel,) = tmp_path.glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("querywright/")}
    rooms = {"querywright": ROOT / "src" / "querywright"}
    rooms |= {f"querywright/{name}": ROOT / name for name in ("programs", "metrics", "optimize")}
    files = {
        f"{name}/{file.relative_to(room).as_posix()}"
        for name, room in rooms.items()
        for file in room.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert "querywright/py.typed" in files
    assert held == files
    _run(sys.executable, "-m", "venv", "--system-site-packages", "--without-pip", tmp_path / "venv")
    site = _run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    _run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", site, wheel)
    (Path(site) / "further.pth").write_text("".join(f"{one}\n" for one in sys.path if one.endswith("site-packages")))
    place.mkdir()
    script = (
        "import querywright as qw, querywright.optimize, sys; print(qw.__file__, len(qw.load_sample().questions), "
        "querywright.optimize.__file__)"
    )
    file, count, other = _run(python, "-c", script, cwd=place).split()
    assert (file.startswith(site), other.startswith(site), count) == (True, True, "240")
    assert "hcqr: " in _run(python, "-m", "querywright", "techniques", cwd=place)


def _run(*command, cwd=None):
    """What a command prints; none of the paths of this process are known to it."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "QUERYWRIGHT_HOME")}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points, version

import pytest

import querywright


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
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "\n\n"


def test_the_version_is_that_of_the_installed_package():
    assert querywright.__version__ == version("querywright")


def test_the_command_is_installed():
    from querywright.cli.main import main

    (command,) = entry_points(group="console_scripts", name="querywright")
    assert command.load() is main


def test_the_working_folder(tmp_path, monkeypatch):
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
        with pytest.raises(InputError, match=rf"the working folder '{wrong}' cannot be made .*QUERYWRIGHT_HOME"):
            home(wrong)
        for opens in (open_store, Workspace.open):
            with pytest.raises(InputError, match=r"the working folder .* cannot be made .*QUERYWRIGHT_HOME"):
                opens(wrong)

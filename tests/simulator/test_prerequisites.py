"""What is printed on a machine where the installation would fail."""

import ast
import os
import subprocess
import sys
import sysconfig
from inspect import isfunction
from pathlib import Path

import pytest

from bridge.simulator import prerequisites

ROOT = Path(__file__).parents[2]
DEBIAN_COMMAND = "apt-get install -y python3-venv"


def answer(**environ: str) -> subprocess.CompletedProcess[str]:
    """Run the check in a Python without installed packages; return the result."""
    kept = {
        key: value for key, value in os.environ.items() if key not in {"CC", "PATH"}
    }
    return subprocess.run(
        [sys.executable, "-S", "-m", "bridge.simulator.prerequisites"],
        cwd=ROOT,
        env=kept | environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def python_home(folder: Path, without: str) -> str:
    """Make a Python from links, but without one module; return its home."""
    base = Path(sysconfig.get_config_var("installed_base"))
    library = Path(sysconfig.get_path("stdlib"))
    copy = folder / library.relative_to(base)
    copy.mkdir(parents=True)
    for entry in library.iterdir():
        if entry.name != without:
            (copy / entry.name).symlink_to(entry)
    return str(folder)


def test_no_compiler_is_needed() -> None:
    result = answer(PATH="")

    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(
        "Nothing is missing. The installation now downloads"
    )


@pytest.mark.parametrize("module", ["venv", "ensurepip"])
def test_missing_venv_module_is_named(tmp_path: Path, module: str) -> None:
    """Debian keeps ``ensurepip`` in python3-venv, and leaves ``venv`` in place."""
    home = python_home(tmp_path / "home", without=module)

    result = answer(PYTHONHOME=home)

    assert (result.returncode, result.stdout) == (1, "")
    assert "missing: Python's venv module." in result.stderr
    assert DEBIAN_COMMAND in result.stderr


def test_source_is_understood_by_the_pythons_it_turns_away() -> None:
    """A syntax error would be shown instead of the helpful sentence."""
    source = Path(prerequisites.__file__).read_text(encoding="utf-8")

    ast.parse(source, feature_version=(3, 7))


def test_no_annotation_is_evaluated_by_the_pythons_it_turns_away() -> None:
    """``list[str]`` fails before 3.9 and ``str | None`` before 3.10."""
    found = [f.__annotations__ for f in vars(prerequisites).values() if isfunction(f)]

    assert found
    assert {type(kind) for kinds in found for kind in kinds.values()} == {str}

"""What a bare machine is told before an installation would fail on it."""

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
DEBIAN_COMMAND = "apt-get install -y gcc python3-dev python3-venv"
COMPILER_VARIABLES = {"CC", "PATH"}


def answer(**environ: str) -> subprocess.CompletedProcess[str]:
    """Return what a Python without any installed package says."""
    kept = {k: v for k, v in os.environ.items() if k not in COMPILER_VARIABLES}
    return subprocess.run(
        [sys.executable, "-S", "-m", "bridge.simulator.prerequisites"],
        cwd=ROOT,
        env=kept | environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """Return a PATH on which ``cc`` and ``gcc`` are all there is."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in ("cc", "gcc"):
        _program(folder / name)
    return folder


def _program(path: Path) -> None:
    path.write_text("#!/bin/sh\n", encoding="utf-8")
    path.chmod(0o755)


def python_home(folder: Path, *, headers: bool, without: str = "") -> str:
    """Return a Python installation of links that lacks what a distribution may."""
    base = Path(sysconfig.get_config_var("installed_base"))
    library = Path(sysconfig.get_path("stdlib"))
    copy = folder / library.relative_to(base)
    copy.mkdir(parents=True)
    for entry in library.iterdir():
        if entry.name != without:
            (copy / entry.name).symlink_to(entry)
    if headers:
        include = folder / Path(sysconfig.get_path("include")).relative_to(base)
        include.mkdir(parents=True)
        (include / "Python.h").touch()
    return str(folder)


def test_next_step_is_said_when_all_is_there(tools: Path, tmp_path: Path) -> None:
    home = python_home(tmp_path / "home", headers=True)

    result = answer(PATH=str(tools), PYTHONHOME=home)

    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("Nothing is missing. The installation now compiles")
    assert "minutes" in result.stdout


def test_missing_compiler_is_named_when_path_is_empty() -> None:
    result = answer(PATH="")

    assert result.returncode == 1
    assert "a C compiler" in result.stderr.splitlines()[0]


def test_missing_compiler_comes_with_the_debian_command() -> None:
    assert DEBIAN_COMMAND in answer(PATH="").stderr


def test_missing_headers_are_named_with_the_version(
    tools: Path, tmp_path: Path
) -> None:
    home = python_home(tmp_path / "home", headers=False)

    result = answer(PATH=str(tools), PYTHONHOME=home)

    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert result.returncode == 1
    assert f"missing: the headers of Python {version}." in result.stderr


def test_missing_headers_come_with_the_debian_command(
    tools: Path, tmp_path: Path
) -> None:
    home = python_home(tmp_path / "home", headers=False)

    assert DEBIAN_COMMAND in answer(PATH=str(tools), PYTHONHOME=home).stderr


@pytest.mark.parametrize("module", ["venv", "ensurepip"])
def test_missing_venv_module_is_named(tools: Path, tmp_path: Path, module: str) -> None:
    """Debian keeps ``ensurepip`` in python3-venv, and leaves ``venv`` in place."""
    home = python_home(tmp_path / "home", headers=True, without=module)

    result = answer(PATH=str(tools), PYTHONHOME=home)

    assert result.returncode == 1
    assert "missing: Python's venv module." in result.stderr


def test_all_that_is_missing_is_said_at_once(tmp_path: Path) -> None:
    home = python_home(tmp_path / "home", headers=False, without="ensurepip")

    first = answer(PATH="", PYTHONHOME=home).stderr.splitlines()[0]

    assert [part in first for part in ("venv", "a C compiler", "headers")] == [True] * 3


def test_what_is_missing_goes_to_standard_error_only() -> None:
    assert answer(PATH="").stdout == ""


def test_compiler_that_cc_names_is_enough(tmp_path: Path) -> None:
    _program(tmp_path / "mycc")
    home = python_home(tmp_path / "home", headers=True)

    result = answer(PATH=str(tmp_path), CC="mycc", PYTHONHOME=home)

    assert result.returncode == 0


def test_compiler_in_cc_may_have_arguments_and_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    folder.mkdir()
    _program(folder / "mycc")
    home = python_home(tmp_path / "home", headers=True)

    result = answer(PATH="", CC=f"'{folder}/mycc' -O2", PYTHONHOME=home)

    assert result.returncode == 0


def test_cc_that_names_no_compiler_is_told_though_another_is_there(
    tools: Path,
) -> None:
    """Setuptools takes CC as it is, and looks for no other."""
    result = answer(PATH=str(tools), CC="no-such-cc -O2")

    assert result.returncode == 1
    assert "no-such-cc" in result.stderr


def test_empty_cc_counts_as_unset(tools: Path, tmp_path: Path) -> None:
    home = python_home(tmp_path / "home", headers=True)

    assert answer(PATH=str(tools), CC="", PYTHONHOME=home).returncode == 0


@pytest.mark.parametrize("value", [" ", 'gcc "'])
def test_odd_cc_is_told_without_a_traceback(tools: Path, value: str) -> None:
    result = answer(PATH=str(tools), CC=value)

    assert result.returncode == 1
    assert result.stderr.startswith("The simulator cannot be installed yet")


def test_source_is_understood_by_the_pythons_it_turns_away() -> None:
    """A syntax error would hide the one sentence that helps."""
    source = Path(prerequisites.__file__).read_text(encoding="utf-8")

    ast.parse(source, feature_version=(3, 7))


def test_no_annotation_is_evaluated_by_the_pythons_it_turns_away() -> None:
    """``list[str]`` fails before 3.9 and ``str | None`` before 3.10."""
    found = [f.__annotations__ for f in vars(prerequisites).values() if isfunction(f)]

    assert found
    assert {type(kind) for kinds in found for kind in kinds.values()} == {str}

"""The tests on the page about testing are run, by pytest and by Node's runner."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bridge.simulator.emulator import Emulator
from tests.docs.page_world import put_commands
from tests.docs.pages import ROOT, blocks, keys_in, section

PAGE = "bridge/simulator/testing.md"
NODE = shutil.which("node")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the files of the page."""
    for block in blocks(PAGE):
        if block.mark.startswith("file: "):
            (tmp_path / block.mark.removeprefix("file: ")).write_text(block.text)
    return tmp_path


@pytest.mark.integration
def test_pytest_runs_the_tests_of_the_page(folder: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "bridge.simulator.pytest_plugin"]
    done = subprocess.run(  # noqa: S603  # ourselves
        [*command, "-p", "no:cacheprovider", "-q"],
        cwd=folder,
        env={
            "PATH": "",
            "PYTHONPATH": str(ROOT),
            # If the plugin is installed, it would be registered twice.
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )

    assert "3 passed" in done.stdout, done.stdout


@pytest.mark.slow
def test_node_runs_the_tests_of_the_page(folder: Path) -> None:
    probe = [NODE or "", "--eval", "require('@azure/service-bus')"]
    if NODE is None or subprocess.run(probe, cwd=folder, check=False).returncode:  # noqa: S603  # nothing from outside
        pytest.skip("@azure/service-bus is not in NODE_PATH")
    put_commands(folder)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(  # noqa: S603  # ourselves
        [NODE, "--test", "--test-reporter=tap"],
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert "# pass 2" in done.stdout, done.stdout + done.stderr
    assert "# fail 0" in done.stdout


def test_page_names_every_method() -> None:
    named = {name.partition("(")[0] for name in keys_in(section(PAGE, "## pytest"))}
    public = {name for name in vars(Emulator) if not name.startswith("_")}

    assert named == public | {"connection_string"}

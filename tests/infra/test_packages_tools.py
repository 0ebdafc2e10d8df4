"""The parts of infra/build.sh: lock files, wheels, the manual page, the image."""

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "infra" / "packaging"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EPOCH = "1700000000"


def run(script: str, *arguments: object) -> str:
    """Run one of the scripts, at a fixed time."""
    return subprocess.run(  # noqa: S603 - our own scripts
        [sys.executable, PACKAGING / script, *map(str, arguments)],
        env={**os.environ, "SOURCE_DATE_EPOCH": EPOCH},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def entries(name: str) -> list[tuple[Requirement, list[str]]]:
    """Return the entries of a lock file, each with its hashes."""
    lines = (PACKAGING / name).read_text().replace("\\\n", " ").splitlines()
    found = [line.split(" --hash=") for line in lines]
    return [
        (Requirement(first), [one.strip() for one in rest]) for first, *rest in found
    ]


def pinned() -> dict[str, str]:
    """Return the versions of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().split()
    found = (line.split("==") for line in lines)
    return {canonicalize_name(name): version for name, version in found}


EXTRAS = ("hub", "simulator", "windows")
LOCKS = ("requirements.txt", *(f"requirements-{extra}.txt" for extra in EXTRAS))


@pytest.mark.parametrize("name", [*LOCKS, "pip.txt"])
def test_lock_names_one_version_and_its_hashes(name: str) -> None:
    for one, hashes in entries(name):
        assert re.fullmatch(r"==[\w.]+", str(one.specifier)), one
        assert hashes, one
        for value in hashes:
            assert re.fullmatch(r"sha256:[0-9a-f]{64}", value), one


@pytest.mark.parametrize("name", LOCKS)
def test_lock_has_the_versions_that_are_tested(name: str) -> None:
    versions = pinned()

    for one, _ in entries(name):
        assert str(one.specifier) == f"=={versions[canonicalize_name(one.name)]}"


def needed(*extras: str) -> set[str]:
    """Return the names of what the project needs with some extras."""
    optional = PROJECT["optional-dependencies"]
    texts = [
        *PROJECT["dependencies"],
        *(t for extra in extras for t in optional[extra]),
    ]
    names = {str(canonicalize_name(Requirement(text).name)) for text in texts}
    return names - {PROJECT["name"]}


def test_lock_has_what_the_project_needs_with_the_extras_of_a_vm() -> None:
    """If not, run infra/packaging/lock.sh."""
    locked = {canonicalize_name(one.name) for one, _ in entries("requirements.txt")}

    assert needed("email", "slack", "template") <= locked


def hashes_of(name: str) -> dict[str, list[str]]:
    """Return the hashes of a lock file by name and version, without the markers."""
    return {
        f"{canonicalize_name(one.name)}{one.specifier}": hashes
        for one, hashes in entries(name)
    }


@pytest.mark.parametrize("extra", EXTRAS)
def test_lock_of_an_extra_is_that_of_a_vm_and_what_the_extra_needs(extra: str) -> None:
    """If not, run infra/packaging/lock.sh."""
    locked = hashes_of(f"requirements-{extra}.txt")
    names = {name.partition("==")[0] for name in locked}

    base = hashes_of("requirements.txt")
    assert {name: locked.get(name) for name in base} == base
    assert needed(extra) <= names
    assert needed(extra) - needed("email", "slack", "template")


def test_manual_page_tells_of_every_command() -> None:
    page = run("manpage.py")

    assert page.startswith('.TH SEBRIDGE 1 2023-11-14 "sebridge ')
    for command in ("run", "check", "status", "approve", "outbox retry", "simulate"):
        assert f".SS sebridge {command.replace('-', chr(92) + '-')}\n" in page
    assert "\n.TP\n.B /etc/sebridge/bridge.toml\n" in page
    assert page == run("manpage.py")


def test_text_of_the_manual_page_is_no_request_of_roff() -> None:
    """A line that begins with a dot would be one; a bare hyphen is no minus."""
    known = (".TH", ".SH", ".SS", ".nf", ".fi", ".TP", ".B ", ".I ")
    for line in run("manpage.py").splitlines():
        assert not line.startswith(("'", ".")) or line.startswith(known), line


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    (folder / "etc").mkdir(parents=True)
    (folder / "etc" / "name").write_text("x")
    (folder / "bin").symlink_to("etc")
    (folder / "var" / "lib" / "sebridge").mkdir(parents=True)
    return folder


def test_image_is_a_layout_whose_digests_are_right(root: Path, tmp_path: Path) -> None:
    """Each blob by its digest: opencontainers/image-spec, image-layout.md."""
    archive = tmp_path / "image.tar"

    run("oci_image.py", root, archive, "x86_64", "1.2.3")

    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path / "image", filter="data")
    image = tmp_path / "image"
    assert json.loads((image / "oci-layout").read_text()) == {
        "imageLayoutVersion": "1.0.0"
    }
    for blob in (image / "blobs" / "sha256").iterdir():
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name
    (top,) = json.loads((image / "index.json").read_text())["manifests"]
    manifest = json.loads(blob_of(image, top["digest"]).read_text())
    config = json.loads(blob_of(image, manifest["config"]["digest"]).read_text())
    assert config["config"]["User"] == "10001:10001"
    assert config["architecture"] == "amd64"
    with tarfile.open(blob_of(image, manifest["layers"][0]["digest"])) as layer:
        members = {one.name: one for one in layer}
    assert {one.mtime for one in members.values()} == {int(EPOCH)}
    state = members["var/lib/sebridge"]
    assert (state.uid, state.gid, state.mode) == (10001, 10001, 0o700)


def blob_of(image: Path, digest: str) -> Path:
    return image / "blobs" / digest.replace(":", "/")


def test_same_files_give_the_same_image(root: Path, tmp_path: Path) -> None:
    run("oci_image.py", root, tmp_path / "a", "aarch64", "1")
    os.utime(root / "etc" / "name", (1, 1))
    run("oci_image.py", root, tmp_path / "b", "aarch64", "1")

    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_wheels_of_a_python_are_those_that_its_markers_ask_for() -> None:
    code = (
        "import json, sys; sys.path.insert(0, sys.argv[1]); import wheelhouse as w; "
        "print(json.dumps({p: w.wanted(p, 'x86_64', sys.argv[2]) for p in w.PYTHONS}))"
    )
    said = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-c", code, PACKAGING, "requirements.txt"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    wanted: dict[str, list[str]] = json.loads(said)
    assert list(wanted) == ["3.11", "3.12", "3.13", "3.14"]
    for lines in wanted.values():
        assert {line.split("==")[0] for line in lines} >= {"pip", "aiohttp", "cffi"}
        assert all(" --hash=sha256:" in line and ";" not in line for line in lines)

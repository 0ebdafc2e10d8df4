"""The offline archive, built of this source with wheels that are made here.

In the place of the program's dependencies it holds one wheel, which leads to those that
run the tests: so an installed program runs, and nothing is fetched.
"""

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from importlib.metadata import distribution
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTS = ("bridge", "config", "infra")
FILES = ("pyproject.toml", "constraints.txt", "README.md", "LICENSE", "CHANGELOG.md")
NO_NETWORK = ("unshare", "--user", "--map-root-user", "--net")


def write_wheel(path: Path, name: str, files: dict[str, bytes]) -> str:
    """Write a wheel, and return its hash."""
    info = f"{name}-1.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n"
    wheel = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files = {
        **files,
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": wheel.encode(),
    }
    rows = [f"{info}/RECORD,,"]
    for file, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text).digest()).rstrip(b"=")
        rows.append(f"{file},sha256={digest.decode()},{len(text)}")
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
        archive.writestr(f"{info}/RECORD", "\n".join(rows) + "\n")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _pip_wheel(path: Path) -> None:
    """Pack the pip that is installed here: a wheel of it can be run as it is."""
    with zipfile.ZipFile(path, "w") as archive:
        for file in distribution("pip").files or ():
            if file.parts[0] == "pip" and file.suffix != ".pyc":
                archive.write(str(file.locate()), str(file))


def source(folder: Path) -> Path:
    """Copy this source, with one dependency that leads to those of the tests."""
    top = folder / "source"
    for part in PARTS:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / part, top / part, ignore=ignore)
    for name in FILES:
        shutil.copy(ROOT / name, top)
    wheels = top / "wheels"
    wheels.mkdir()
    _pip_wheel(wheels / "pip-99-py3-none-any.whl")
    lead = {"deps.pth": (sysconfig.get_paths()["purelib"] + "\n").encode()}
    digest = write_wheel(wheels / "deps-1-py3-none-any.whl", "deps", lead)
    for name in ("requirements.txt", "requirements-hub.txt"):
        lock = top / "infra/packaging" / name
        lock.write_text(f"deps==1 --hash=sha256:{digest}\n")
    return top


def build(top: Path, *arguments: str) -> Path:
    """Run infra/build.sh of a source, and return the folder of what it made."""
    found = subprocess.run(  # noqa: S603 - our own script
        [top / "infra/build.sh", "--wheels", top / "wheels", *arguments],
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "SOURCE_DATE_EPOCH": "1700000000",
        },
        cwd=top,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return top / "dist"


def archive_in(folder: Path, version: str) -> Path:
    """Build the offline archive as a version."""
    out = build(source(folder), "--only", "kit", "--version", version)
    (found,) = out.glob("*.tar.gz")
    return found


def can_cut_off_the_network() -> bool:
    """Whether a namespace without a network can be had here."""
    if shutil.which("unshare") is None:
        return False
    command = [*NO_NETWORK, "true"]
    found = subprocess.run(command, capture_output=True, check=False)  # noqa: S603 - fixed words
    return found.returncode == 0

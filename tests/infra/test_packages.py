"""infra/build.sh: the same bytes each time, and packages that hold what they should.

Their wheels are empty files here: nothing is fetched. infra/verify.sh builds the whole,
and installs it.
"""

import base64
import gzip
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from hashlib import sha256
from pathlib import Path, PurePosixPath

import pytest

from tests.infra import kits

pytestmark = [
    pytest.mark.deploy,
    pytest.mark.timeout(1200),  # all is built twice, on a busy machine too
]

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "infra" / "build.sh"
NAME = "scheduled-events-bridge"
KINDS = {"wheel": None, "sdist": None, "deb": "dpkg-deb", "rpm": "rpmbuild"}
HERE = [kind for kind, tool in KINDS.items() if tool is None or shutil.which(tool)]

needs_dpkg = pytest.mark.skipif("deb" not in HERE, reason="dpkg-deb is missing")
needs_rpm = pytest.mark.skipif("rpm" not in HERE, reason="rpmbuild is missing")
each_kind = pytest.mark.parametrize(
    "ending",
    [pytest.param(".deb", marks=needs_dpkg), pytest.param(".rpm", marks=needs_rpm)],
)


def build(out: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    # The program can be imported by the Python that runs this, perhaps by no other.
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(  # noqa: S603 - our own script
        ["/bin/bash", BUILD, "--out", out, *arguments],
        env={**os.environ, "PATH": path, "SOURCE_DATE_EPOCH": "1700000000"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Build everything that can be built here, two times."""
    folder = tmp_path_factory.mktemp("packages")
    wheels = folder / "wheels"
    wheels.mkdir()
    (wheels / "some-1-py3-none-any.whl").write_bytes(b"a wheel")
    outs = [folder / "a", folder / "b"]
    for out in outs:
        found = build(
            out, "--only", ",".join([*HERE, "kit", "windows"]), "--wheels", str(wheels)
        )
        assert found.returncode == 0, found.stderr
    return outs


def one(out: Path, ending: str, package: str = NAME) -> Path:
    (found,) = out.glob(f"{package}*{ending}")
    return found


def program_of(wheel: bytes) -> zipfile.ZipFile:
    return zipfile.ZipFile(io.BytesIO(wheel))


def names_in(program: zipfile.ZipFile) -> set[str]:
    """Return the packages of the program that a wheel has."""
    paths = (Path(name).parts for name in program.namelist())
    return {parts[1] for parts in paths if parts[0] == "bridge" and len(parts) > 2}


PROGRAM = "wheels/scheduled_events_bridge-*.whl"
LEFT_OUT = {"demo", "simulator"}


def text(*command: str | Path) -> str:
    return subprocess.run(  # noqa: S603 - fixed words
        command, capture_output=True, text=True, check=True
    ).stdout


def test_two_builds_have_the_same_bytes(built: list[Path]) -> None:
    def sums(out: Path) -> dict[str, str]:  # the difference of megabytes takes minutes
        return {p.name: sha256(p.read_bytes()).hexdigest() for p in out.iterdir()}

    first, second = map(sums, built)

    assert first == second
    # Two packages of a kind; the kit, the .zip, and the checksums.
    packages = [kind for kind in HERE if kind in {"deb", "rpm"}]
    assert len(first) == len(HERE) + len(packages) + 3


def test_checksums_are_those_of_the_files(built: list[Path]) -> None:
    said = subprocess.run(
        ["sha256sum", "--check", "SHA256SUMS"],  # noqa: S607 - from the PATH
        cwd=built[0],
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert said.count(": OK") == len(list(built[0].iterdir())) - 1


def test_kit_has_what_installs_it(built: list[Path]) -> None:
    with tarfile.open(one(built[0], "-x86_64.tar.gz")) as tar:
        names = {Path(*Path(member.name).parts[1:]).as_posix() for member in tar}

    assert names >= {
        "install.sh",
        "uninstall.sh",
        "lib.sh",
        "program.sh",
        "requirements.txt",
        "SHA256SUMS",
        "README.md",
        "systemd/sebridge.service",
        "hooks/hook.sh",
        "wheels/some-1-py3-none-any.whl",
    }


def test_machines_get_the_program_without_the_local_azure(built: list[Path]) -> None:
    """What is published is whole; RECORD names what there is, and its hashes."""
    with tarfile.open(one(built[0], "-x86_64.tar.gz")) as tar:
        (member,) = (m for m in tar if PurePosixPath(m.name).match(PROGRAM))
        taken = tar.extractfile(member)
        assert taken is not None
        program = program_of(taken.read())
    with zipfile.ZipFile(one(built[0], "-windows-amd64.zip")) as folder:
        (name,) = (n for n in folder.namelist() if PurePosixPath(n).match(PROGRAM))
        windows = program_of(folder.read(name))

    whole = zipfile.ZipFile(one(built[0], ".whl", "scheduled_events_bridge"))
    assert names_in(whole) >= LEFT_OUT
    assert names_in(program) == names_in(windows) == names_in(whole) - LEFT_OUT
    (record,) = (n for n in program.namelist() if n.endswith("/RECORD"))
    rows = [line.split(",") for line in program.read(record).decode().splitlines()]
    assert [row[0] for row in rows] == program.namelist()
    for path, digest, size in rows[:-1]:
        body = program.read(path)
        text = base64.urlsafe_b64encode(sha256(body).digest()).rstrip(b"=").decode()
        assert (digest, size) == (f"sha256={text}", str(len(body)))
    points = program.read(record.replace("RECORD", "entry_points.txt")).decode()
    assert points == "[console_scripts]\nsebridge = bridge.__main__:main\n"


@each_kind
@pytest.mark.parametrize("package", [NAME, "sebridge-hub"])
def test_package_carries_the_program_without_the_local_azure(
    built: list[Path], package: str, ending: str
) -> None:
    with unpacked(one(built[0], ending, package)) as tar:
        (member,) = (m for m in tar if PurePosixPath(m.name).match(PROGRAM))
        taken = tar.extractfile(member)
        assert taken is not None
        assert not names_in(program_of(taken.read())) & LEFT_OUT


@each_kind
def test_package_of_the_hub_has_what_runs_it(built: list[Path], ending: str) -> None:
    package = one(built[0], ending, "sebridge-hub")
    with unpacked(package) as tar:
        found = {member.name: member for member in tar}
        lock = tar.extractfile("./usr/lib/sebridge-hub/requirements.txt")
        assert lock is not None
        assert "\nsqlalchemy==" in lock.read().decode()

    assert {(one.uname, one.gname) for one in found.values()} == {("root", "root")}
    assert found["./etc/sebridge-hub"].mode == 0o750
    assert found["./etc/sebridge-hub/hub.toml"].mode == 0o640
    program = found["./usr/bin/sebridge-hub"].linkname
    assert program == "/opt/sebridge-hub/bin/sebridge"
    assert {
        "./usr/sbin/sebridge-hub-setup",
        "./usr/lib/systemd/system/sebridge-hub.service",
        "./usr/lib/sysusers.d/sebridge-hub.conf",
        "./usr/lib/sebridge-hub/install.sh",
        "./usr/lib/sebridge-hub/systemd/hub.toml",
    } <= set(found)
    of_user: dict[str, tuple[str | Path, ...]] = {
        ".deb": ("dpkg-deb", "--info", package, "conffiles"),
        ".rpm": ("rpm", "-qp", "--configfiles", package),
    }
    assert text(*of_user[ending]) == "/etc/sebridge-hub/hub.toml\n"
    # Both can be on one machine: no file is of both.
    files = {name for name, member in found.items() if not member.isdir()}
    with unpacked(one(built[0], ending)) as other:
        assert files.isdisjoint(other.getnames())


HUB_TOML = """
[hub]
store = "sqlite:/var/lib/sebridge-hub/hub.db"
[[hub.sources]]
name = "bridges"
type = "bridges"
namespace = "contoso.servicebus.windows.net"
topic = "scheduled-events"
subscription = "hub"
"""


@each_kind
@pytest.mark.skipif(
    not kits.can_cut_off_the_network(), reason="no namespace without a network here"
)
def test_hub_is_installed_without_a_network(tmp_path: Path, ending: str) -> None:
    """Its last step, in a tree: the program is made, and takes a configuration."""
    out, root = kits.build(kits.source(tmp_path), "--only", ending[1:]), tmp_path / "r"
    with unpacked(one(out, ending, "sebridge-hub")) as tar:
        tar.extractall(root, filter="tar")
    config = root / "etc/sebridge-hub/hub.toml"
    config.write_text(HUB_TOML)

    subprocess.run(  # noqa: S603 - what the package runs
        [
            *kits.NO_NETWORK,
            root / "usr/lib/sebridge-hub/install.sh",
            *("--hub", "--packaged", "--no-start"),
        ],
        env={"PATH": os.environ["PATH"], "DESTDIR": str(root)},
        capture_output=True,
        check=True,
    )

    program = root / "opt/sebridge-hub/bin/sebridge"
    assert text(program, "check", "-c", config) == f"{config}: ok\n"
    unit = root / "usr/lib/systemd/system/sebridge-hub.service"
    assert f"ExecStart=/{program.relative_to(root)} hub" in unit.read_text()


@needs_dpkg
def test_deb_has_its_files_as_root_and_its_configuration(built: list[Path]) -> None:
    deb = one(built[0], ".deb")
    lines = text("dpkg-deb", "--contents", deb).splitlines()
    rows = {line.split(maxsplit=5)[5]: line for line in lines}

    assert all(" root/root " in line for line in lines)
    assert rows["./etc/sebridge/"].startswith("drwxr-x---")
    assert rows["./etc/sebridge/bridge.toml"].startswith("-rw-r-----")
    assert "./usr/bin/sebridge -> /opt/sebridge/bin/sebridge" in rows
    for path in (
        "usr/sbin/sebridge-setup",
        "usr/lib/systemd/system/sebridge.service",
        "usr/lib/sysusers.d/sebridge.conf",
        "usr/share/man/man1/sebridge.1.gz",
        "usr/share/man/man8/sebridge-setup.8.gz",
        f"usr/share/doc/{NAME}/changelog.gz",
        f"usr/share/doc/{NAME}/CHANGELOG.md.gz",
        "usr/share/bash-completion/completions/sebridge",
        "usr/share/sebridge/hooks/kubernetes-drain",
        "usr/lib/sebridge/install.sh",
    ):
        assert f"./{path}" in rows
    conffiles = text("dpkg-deb", "--info", deb, "conffiles")
    assert conffiles == "/etc/sebridge/bridge.toml\n"


@needs_dpkg
def test_deb_has_a_changelog_that_debian_reads(built: list[Path]) -> None:
    deb = one(built[0], ".deb")
    found = packed(deb, f"usr/share/doc/{NAME}/changelog.gz")
    said = text("dpkg-deb", "--field", deb, "Version").strip()
    maintainer = text("dpkg-deb", "--field", deb, "Maintainer").strip()

    head, *_, tail = found.strip().splitlines()
    assert head == f"{NAME} ({said}) unstable; urgency=medium"
    assert tail == f" -- {maintainer}  Tue, 14 Nov 2023 22:13:20 +0000"
    if shutil.which("dpkg-parsechangelog") is None:
        pytest.skip("dpkg-parsechangelog is missing")
    read = subprocess.run(
        ["dpkg-parsechangelog", "--file", "-", "--show-field", "Version"],  # noqa: S607 - from the PATH
        input=found,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (read.stdout.strip(), read.stderr) == (said, "")


@needs_dpkg
@pytest.mark.parametrize("page", ["man1/sebridge.1", "man8/sebridge-setup.8"])
def test_manual_pages_are_read_without_a_warning(built: list[Path], page: str) -> None:
    roff = packed(one(built[0], ".deb"), f"usr/share/man/{page}.gz")

    assert "@" not in roff.partition("\n")[0]
    if page.endswith(".8"):  # each option of the script has its place
        usage = text("bash", ROOT / "infra" / "install.sh", "--help")
        for option in re.findall(r"^  (--[a-z-]+)", usage, flags=re.MULTILINE):
            # Of the clone, of itself, and of the package sebridge-hub.
            if option not in {"--wheel", "--packaged", "--hub"}:
                assert option.replace("-", "\\-") in roff
    if shutil.which("groff") is None:
        pytest.skip("groff is missing")
    shown = subprocess.run(
        ["groff", "-man", "-Kutf8", "-Tutf8", "-ww", "-rLL=80n"],  # noqa: S607 - from the PATH
        input=roff,
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stderr == ""
    plain = re.sub(".\x08", "", shown.stdout)  # bold is each letter twice
    assert "EXIT STATUS" in plain


def unpacked(package: Path) -> tarfile.TarFile:
    """Return the files of a package."""
    deb, rpm = ("dpkg-deb", "--fsys-tarfile", package), ("rpm2archive", "-n")
    with package.open("rb") as given:
        taken = subprocess.run(  # noqa: S603 - our own package
            deb if package.suffix == ".deb" else rpm,
            stdin=given,
            capture_output=True,
            check=True,
        ).stdout
    return tarfile.open(fileobj=io.BytesIO(taken))


def packed(deb: Path, path: str) -> str:
    """Return a text that is compressed in a package."""
    with unpacked(deb) as tar:
        found = tar.extractfile(f"./{path}")
        assert found is not None
        return gzip.decompress(found.read()).decode()


@needs_dpkg
def test_deb_says_which_python_it_needs(built: list[Path]) -> None:
    said = text("dpkg-deb", "--field", one(built[0], ".deb"), "Depends")

    assert said == "python3 (>= 3.11), python3 (<< 3.15), systemd (>= 247)\n"


@needs_rpm
def test_rpm_has_its_files_as_root_and_its_configuration(built: list[Path]) -> None:
    rpm = one(built[0], ".rpm")

    kept = text("rpm", "-qp", "--configfiles", rpm)
    assert kept == "/etc/sebridge/bridge.toml\n"
    form = "[%{FILEUSERNAME}:%{FILEGROUPNAME}\n]"
    assert set(text("rpm", "-qp", "--qf", form, rpm).split()) == {"root:root"}
    assert "/usr/lib/sebridge/install.sh\n" in text("rpm", "-qpl", rpm)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--only", "zip"], "--only knows no zip"),
        (["--arch", "riscv64"], "--arch is x86_64 or aarch64, not riscv64"),
        (["--fast"], "unknown argument: --fast"),
        (["--only"], "--only wants a value"),
    ],
)
def test_wrong_argument_is_reported(
    arguments: list[str], what: str, tmp_path: Path
) -> None:
    found = build(tmp_path / "out", *arguments)

    assert found.returncode == 2
    assert what in found.stderr


def test_scripts_of_the_packages_are_sound() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is missing")
    packaging = ROOT / "infra" / "packaging"
    scripts = [
        *packaging.glob("*.sh"),
        *(packaging / "deb").glob("p*"),
        *(packaging / "hub").glob("p*"),
        packaging / "sebridge-hub-setup",
        packaging / "sebridge-setup",
        ROOT / "infra" / "verify.sh",
    ]

    said = subprocess.run(  # noqa: S603 - our own scripts
        ["shellcheck", "--external-sources", *scripts],  # noqa: S607 - from the PATH
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert said.returncode == 0, said.stdout

"""A systemd as process 1 of namespaces of its own, in which infra/install.sh was run.

What is written to /etc, /opt, /usr/local, /var and /run stays in memory there. The
network is the machine's own. It needs root; where it cannot be had, the tests are
skipped.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATIENCE = 60
# Of the units of a machine only these are there, and they do nothing.
TARGETS = (
    "sysinit",
    "basic",
    "shutdown",
    "multi-user",
    "paths",
    "sockets",
    "network-online",
)
BEGIN = """\
set -e
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs -o mode=755 tmpfs /run
for folder in etc opt usr/local var; do
  mkdir -p /run/changes/$folder/upper /run/changes/$folder/work
  changes=/run/changes/$folder
  options=lowerdir=/$folder,upperdir=$changes/upper,workdir=$changes/work
  mount -t overlay overlay -o $options /$folder
done
# What runs the tests, where the account of the service can read it: only the package,
# since the checkout itself may be for its owner alone.
mkdir -p /run/code/source/bridge /run/code/site /run/code/python
mount --bind "SOURCE/bridge" /run/code/source/bridge
mount --bind "SITE" /run/code/site
mount --bind "BASE" /run/code/python
mount -t tmpfs tmpfs /etc/systemd/system
for name in TARGETS; do
  printf '[Unit]\\nDefaultDependencies=no\\n' >/etc/systemd/system/$name.target
done
umount -R /sys/fs/cgroup 2>/dev/null || true
if [ -n "$1" ]; then
  mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
  mkdir /sys/fs/cgroup/systemd
  mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
else
  mount -t cgroup2 cgroup2 /sys/fs/cgroup
fi
exec env -i container=tests PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \\
  SYSTEMD_UNIT_PATH=/etc/systemd/system SYSTEMD_LOG_TARGET=console \\
  PROGRAM --system --unit=multi-user.target
"""
# Each has a group of its own for its processes: two at once would share their units'.
ALONE = """\
mkdir "$0" && echo $$ >"$0/cgroup.procs"
exec unshare -m -p -C -f --kill-child sh "$@"
"""
# A Python that makes an environment of what runs the tests, in no time.
PYTHON = """\
#!/bin/sh
[ "$1" = -m ] || exit 0
mkdir -p "$3/bin"
printf '#!/bin/sh\\n' >"$3/bin/pip"
cat >"$3/bin/python" <<'TEXT'
#!/bin/sh
export LD_LIBRARY_PATH=/run/code/python/lib PYTHONPATH=/run/code/source:/run/code/site
exec "BINARY" "$@"
TEXT
cat >"$3/bin/sebridge" <<'TEXT'
#!/bin/sh
export LD_LIBRARY_PATH=/run/code/python/lib PYTHONPATH=/run/code/source:/run/code/site
exec "BINARY" -m bridge "$@"
TEXT
chmod +x "$3/bin/pip" "$3/bin/python" "$3/bin/sebridge"
"""


@dataclass(frozen=True)
class Machine:
    """Where that systemd is.

    Attributes:
        pid: its own, seen from here.
    """

    pid: int
    folder: Path

    @property
    def root(self) -> Path:
        """Its root directory, seen from here."""
        return Path(f"/proc/{self.pid}/root")

    def enter(self, *command: str | Path) -> list[str | Path]:
        """Return the command that runs a command there."""
        return ["nsenter", "-t", str(self.pid), "-m", "-p", "-C", *command]

    def run(self, *command: str | Path) -> str:
        """Run a command there, which must not fail; return what it said."""
        found = self.tried(*command)
        assert found.returncode == 0, found.stdout + found.stderr
        return found.stdout

    def tried(self, *command: str | Path) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(  # noqa: S603 - our own commands
            self.enter(*command),
            env={"PATH": os.environ["PATH"], "PYTHON": str(self.folder / "python")},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )

    def install(self, *arguments: str) -> str:
        """Run infra/install.sh there."""
        return self.run("bash", ROOT / "infra" / "install.sh", "--no-start", *arguments)

    def is_up(self) -> bool:
        return self.tried("systemctl", "is-active", "multi-user.target").returncode == 0


def missing() -> str | None:
    """Return why there can be no such machine here; None where there may be one."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "only root of a Linux makes namespaces"
    tools = ("unshare", "nsenter", "systemctl", "systemd-sysusers")
    absent = [tool for tool in tools if shutil.which(tool) is None]
    return f"{', '.join(absent)} is missing (Debian: systemd)" if absent else None


def systemd() -> str:
    """Return where the program is."""
    places = ("/usr/lib/systemd/systemd", "/lib/systemd/systemd")
    return next(place for place in places if Path(place).exists())


@contextmanager
def machine_in(folder: Path) -> Iterator[Machine | None]:
    """Yield such a machine; None where the kernel does not allow it.

    There is one at a time, whatever runs in parallel: with two, one systemd finds
    processes in its units that are not its own, and cannot kill them.
    """
    import fcntl  # noqa: PLC0415 - does not exist on Windows

    with (Path(tempfile.gettempdir()) / "sebridge-machine.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with _machine_in(folder) as found:
            yield found


@contextmanager
def _machine_in(folder: Path) -> Iterator[Machine | None]:
    begin, python = folder / "begin", folder / "python"
    known = {
        "TARGETS": " ".join(TARGETS),
        "PROGRAM": systemd(),
        "SOURCE": str(ROOT),
        "SITE": sysconfig.get_path("purelib"),
        "BASE": sys.base_prefix,
        "BINARY": f"/run/code/python/bin/python3.{sys.version_info.minor}",
    }
    begin.write_text(_filled(BEGIN, known))
    python.write_text(_filled(PYTHON, known))
    python.chmod(0o755)
    groups, is_old = Path("/sys/fs/cgroup"), ""
    if (groups / "systemd").exists():
        groups, is_old = groups / "systemd", "yes"
    group = groups / f"tests-{uuid.uuid4()}"
    with (folder / "systemd.log").open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - our own script
            ["sh", "-c", ALONE, group, begin, is_old],  # noqa: S607 - from PATH
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield _up(process, folder)
    finally:
        process.kill()
        process.wait()
        _removed(group)


def _removed(group: Path) -> None:
    """Remove a group of processes, with those in it; one may still be ending."""
    for folder in sorted(group.glob("**/"), reverse=True):
        with suppress(OSError):
            folder.rmdir()


def _filled(text: str, known: dict[str, str]) -> str:
    for name, value in known.items():
        text = text.replace(name, value)
    return text


def _up(process: "subprocess.Popen[bytes]", folder: Path) -> Machine | None:
    end = time.monotonic() + PATIENCE
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while process.poll() is None and time.monotonic() < end:
        if child := children.read_text().split():
            machine = Machine(int(child[0]), folder)
            if machine.is_up():
                return machine
        time.sleep(0.1)
    return None

"""A PostgreSQL of the tests' own, in a folder that goes with it."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tests.support.ports import free_port

MISSING = "there is no PostgreSQL here: apt-get install postgresql"
_STEPS = "alembic_version"
_FROM_ONE = (
    "SELECT setval(format('%I', sequencename)::regclass, start_value, false) "
    "FROM pg_sequences WHERE schemaname = 'public'"
)
_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"


def _binaries() -> Path | None:
    """Return where initdb and its kin are; None where they are not."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    path = shutil.which("initdb")
    return Path(path).resolve().parent if path else None


def is_there() -> bool:
    """Whether a cluster can be made: root needs the account that it never runs as."""
    if _binaries() is None:
        return False
    with suppress(KeyError):
        return os.getuid() != 0 or bool(pwd.getpwnam("postgres"))
    return False


@dataclass(frozen=True)
class Cluster:
    """A server that runs.

    Attributes:
        url: of its database.
        is_durable: whether a commit waits for the disk; tests need none of that.
    """

    folder: Path
    port: int
    is_durable: bool = False

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def sql(self, text: str) -> str:
        """Run a statement and return what it prints."""
        command = ["psql", "-X", "-A", "-t", "-h", "127.0.0.1", "-p", str(self.port)]
        return _run([*command, "-U", "postgres", "-c", text])

    def forget(self) -> None:
        """Remove everything, the schema too."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")

    def empty(self, head: str, tables: Sequence[str]) -> None:
        """Remove all rows where the schema is as it should be; else everything.

        TRUNCATE makes all files anew, which takes three times as long as a few rows.

        Args:
            head: the last step that is taken there.
            tables: all that are there, with those first that others refer to; a test
                may have removed one.
        """
        with psycopg.connect(self.url, autocommit=True) as connection:
            found = {name for (name,) in connection.execute(_TABLES)}
            steps = set[str]()
            if found == {_STEPS, *tables}:
                asked = "SELECT version_num FROM alembic_version"
                steps = {step for (step,) in connection.execute(asked)}
            if steps == {head}:
                rows = [f"DELETE FROM {name}" for name in reversed(tables)]  # noqa: S608 - our own names
                connection.execute("; ".join([*rows, _FROM_ONE]).encode())
                return
        self.forget()

    def start(self) -> None:
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1"
        options += f" -c fsync={'on' if self.is_durable else 'off'}"
        options += " -c max_connections=60"
        log = str(self.folder / "log")
        data = str(self.folder / "data")
        _run(["pg_ctl", "-D", data, "-w", "-l", log, "-o", options, "start"])

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop every process of it as it stands: connections stay, nothing answers."""
        stopped = self._processes()
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in stopped:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill every process of it, as a machine that loses its power does."""
        for pid in self._processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # Where nobody reaps it, its number is taken still: the next would not start.
        (self.folder / "data/postmaster.pid").unlink()
        (self.folder / f".s.PGSQL.{self.port}.lock").unlink()

    def _processes(self) -> list[int]:
        """Return the postmaster and its children."""
        head = int((self.folder / "data/postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{head}/task/{head}/children").read_text().split()
        return [head, *map(int, children)]

    def stop(self) -> None:
        data = str(self.folder / "data")
        _run(["pg_ctl", "-D", data, "-w", "-m", "immediate", "stop"])


@contextmanager
def cluster(*, is_durable: bool = False) -> Iterator[Cluster]:
    """Make a cluster, run it, and remove it."""
    folder = Path(tempfile.mkdtemp(prefix="hub-pg-"))
    try:
        if os.getuid() == 0:
            shutil.chown(folder, "postgres", "postgres")
        data = str(folder / "data")
        _run(["initdb", "-D", data, "-U", "postgres", "-A", "trust", "--no-sync"])
        found = Cluster(folder, free_port(), is_durable)
        found.start()
        try:
            yield found
        finally:
            with suppress(subprocess.CalledProcessError):
                found.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(command: list[str]) -> str:
    """Run one of PostgreSQL's programs, as its own account where we are root."""
    folder = _binaries()
    assert folder is not None
    user = "postgres" if os.getuid() == 0 else None
    name = command[0] if command[0] == "psql" else str(folder / command[0])
    done = subprocess.run(  # noqa: S603 - our own arguments
        [name, *command[1:]],
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL if command[0] == "pg_ctl" else subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        user=user,
        cwd="/",
        timeout=60,
    )
    return (done.stdout or "").strip()

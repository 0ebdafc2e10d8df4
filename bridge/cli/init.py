"""``sebridge init``: a first configuration, from flags or a few questions.

Nothing is overwritten, and nothing is written that ``check`` would refuse. A secret
goes into a file of its own: the configuration only refers to it.
"""

import os
import stat
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import click

from bridge.cli.common import CONFIG_VARIABLE, WRONG, default_config, fail
from bridge.configuration.starter import Wishes, first_text, refuse_faults
from bridge.foundation.errors import BridgeError
from bridge.foundation.values import Address
from bridge.sinks.command import ownership
from bridge.telemetry.metrics import printable

_ASK = "ask"
_REFERENCES = ("env:", "file:")
# Where infra/install.sh --hook puts hooks, and the unit by which root runs them.
_HOOKS = Path("/etc/sebridge/hooks")
_HOOK_UNIT = Path("/etc/systemd/system/sebridge-hook@.service")
_SLACK_FILE, _WEBHOOK_FILE = "slack-webhook-url", "webhook-url"
_FLAGS = (
    "--slack",
    "--webhook URL",
    "--servicebus NAMESPACE/TOPIC",
    "--command PATH",
    "--traffic",
)


@click.command()
@click.option(
    "--slack",
    is_flag=False,
    flag_value=_ASK,
    default="",
    metavar="[env:NAME|file:PATH]",
    help="Tell Slack. The address of the incoming webhook is asked for, or read from "
    "standard input; or it is where the reference says.",
)
@click.option("--webhook", metavar="URL", default="", help="Post each event there.")
@click.option(
    "--servicebus",
    metavar="NAMESPACE/TOPIC",
    default="",
    help="Send each event to that topic, with the VM's managed identity.",
)
@click.option(
    "--command",
    metavar="PATH",
    default="",
    help="Run this before an event of this VM, and when it is over.",
)
@click.option("--traffic", is_flag=True, help="Answer the probe of a load balancer.")
@click.option(
    "-o",
    "--output",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar=CONFIG_VARIABLE,
    default=default_config(os.environ),
    show_default=f"${CONFIG_VARIABLE}, else {default_config(os.environ)}",
    help="The file that is written.",
)
def init(path: Path, **said: str | bool) -> None:
    """Write a first configuration; nothing is overwritten.

    What is to be done is said by options, or asked for on a terminal. What is written
    passes check. A secret goes into a file beside it, to which it refers.
    """
    _refuse_present(path)
    wishes = Wishes(**said)  # type: ignore[arg-type]  # click has checked them
    if wishes.is_empty:
        wishes = _asked()
    if wishes.is_empty:
        fail(f"nothing to write: say {', '.join(_FLAGS)}", code=WRONG)
    path = path.absolute()
    wishes = replace(wishes, by_unit=_is_run_by_root(wishes.command))
    wishes, secrets = _set_apart(wishes, path.parent)
    try:
        _write(path, first_text(wishes), secrets, is_open=wishes.is_open)
    except OSError as error:
        what = f"{error.filename or path} cannot be written: {error.strerror}"
        raise BridgeError(what) from error
    _tell(path, wishes, secrets)


def _refuse_present(path: Path) -> None:
    """End where there is a configuration already."""
    if os.path.lexists(path) and not _is_blank(path):
        fail(f"{path} is there already, and stays as it is: -o names another file")


def _is_blank(path: Path) -> bool:
    """Whether a file holds comments alone, such as the one that install.sh puts."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, ValueError):
        return False
    return all(line.lstrip()[:1] in {"", "#"} for line in lines)


def _asked() -> Wishes:
    """Return what a person at a terminal wants; without a terminal nothing."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return Wishes()
    click.echo("What is to be done? Enter alone means: not this.")
    slack = click.confirm("Tell Slack, by an incoming webhook?", default=False)
    return Wishes(
        slack=_ASK if slack else "",
        webhook=_answer("Post each event to this URL"),
        servicebus=_answer("Send each event to this Service Bus NAMESPACE/TOPIC"),
        command=_answer("Run this command before an event (its whole path)"),
        traffic=click.confirm("Answer the probe of a load balancer?", default=False),
    )


def _answer(question: str) -> str:
    answer: str = click.prompt(question, default="", show_default=False)
    return answer.strip()


def _is_run_by_root(command: str) -> bool:
    """Whether the shipped service is here, and root has a unit for such a hook."""
    return Path(command).parent == _HOOKS and _HOOK_UNIT.exists()


def _set_apart(wishes: Wishes, folder: Path) -> tuple[Wishes, dict[Path, str]]:
    """Return the wishes with references in the place of secrets, and these by file."""
    secrets = dict[Path, str]()
    if wishes.slack == _ASK:
        file = folder / _SLACK_FILE
        if not file.exists():  # what an earlier call has written is used
            secrets[file] = _slack_address()
        wishes = replace(wishes, slack=f"file:{file.as_posix()}")
    elif wishes.slack and not wishes.slack.startswith(_REFERENCES):
        what = "--slack: others may read the arguments of a process: say env:NAME or "
        fail(f"{what}file:PATH, or --slack alone, which asks for it", code=WRONG)
    url = Address(wishes.webhook, {})
    if url.is_literal and url.holds_secret("url"):
        file = folder / _WEBHOOK_FILE
        secrets[file] = wishes.webhook
        wishes = replace(wishes, webhook=f"file:{file.as_posix()}")
    return wishes, secrets


def _slack_address() -> str:
    """Return the address of the incoming webhook, which is not shown."""
    if sys.stdin.isatty():
        address: str = click.prompt("Address of the incoming webhook", hide_input=True)
    else:
        address = sys.stdin.readline()
    if not address.strip():
        what = "the address of the incoming webhook is missing: the first line of "
        fail(f"--slack: {what}standard input", code=WRONG)
    return address.strip()


def _write(
    path: Path, text: str, secrets: Mapping[Path, str], *, is_open: bool
) -> None:
    """Write the configuration and its secrets, or nothing at all.

    Args:
        path: of the configuration.
        text: of it.
        secrets: what goes into files beside it.
        is_open: whether everybody may read the configuration.

    Raises:
        ConfigError: it has faults.
        OSError: a file cannot be written, or is there already.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as undo:
        for file, secret in secrets.items():
            _create(file, f"{secret}\n", 0o600, undo)
        refuse_faults(text, os.environ, str(path))
        if path.exists():
            _move_aside(path, undo)
        _create(path, text, 0o644 if is_open else 0o600, undo)
        undo.pop_all()


def _move_aside(path: Path, undo: ExitStack) -> None:
    aside = path.with_name(f"{path.name}.orig")
    os.link(path, aside)  # and never over another one
    path.unlink()
    undo.callback(aside.rename, path)


def _create(path: Path, text: str, mode: int, undo: ExitStack) -> None:
    """Write a file that is not there yet."""
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    undo.callback(path.unlink)
    with os.fdopen(number, "w", encoding="utf-8", newline="\n") as file:
        _share(file.fileno(), path.parent)
        file.write(text)


def _share(number: int, folder: Path) -> None:
    """Let the group read that a closed directory is shared with: the service's."""
    if sys.platform == "win32":
        return  # rights come from the folder there
    found = folder.stat()
    if not found.st_mode & stat.S_IRWXO and found.st_gid != os.fstat(number).st_gid:
        with suppress(PermissionError):  # only root, or a member of it, may do so
            os.fchown(number, -1, found.st_gid)
            os.fchmod(number, 0o640)


def _tell(path: Path, wishes: Wishes, secrets: Mapping[Path, str]) -> None:
    """Say what was written, and what comes next."""
    for file in (*secrets, path):
        click.echo(printable(f"{file}: written"))
    if wishes.command:
        command, account = (wishes.command,), ownership.account()
        trouble = ownership.trouble_of(command, account)
        if trouble := trouble or ownership.unusable(wishes.command):
            click.echo(printable(f"warning: {trouble}"), err=True)
    where = "" if path == default_config(os.environ) else f" -c {path}"
    click.echo(printable(f"next: sebridge check --connect{where}"))

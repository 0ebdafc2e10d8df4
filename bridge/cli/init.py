"""``sebridge init``: write a first configuration, from options or a few questions.

It never overwrites a file, and never writes a configuration that ``check`` would
refuse. A secret goes into a file of its own; the configuration refers to that file.
"""

import os
import shlex
import stat
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import click
from msgspec.structs import replace

from bridge.cli.common import CONFIG_VARIABLE, default_config
from bridge.cli.ending import WRONG, fail
from bridge.configuration import json_schema
from bridge.configuration.starter import Wishes, first_text, refuse_faults
from bridge.foundation.errors import BridgeError, ConfigError
from bridge.foundation.printable import printable
from bridge.foundation.values import Address
from bridge.sinks.command import ownership
from bridge.sinks.command.ownership import Service

_ASK = "ask"
_REFERENCES = ("env:", "file:")
# Where infra/install.sh --hook puts hooks, which its systemd unit runs as root.
_HOOKS = Path("/etc/sebridge/hooks")
_SLACK_FILE, _WEBHOOK_FILE = "slack-webhook-url", "webhook-url"
_SEEN_BY_ALL = "other users can read the arguments of a process: use env:NAME or "
_FLAGS = (
    "--slack",
    "--webhook URL",
    "--email RELAY/ADDRESS",
    "--servicebus NAMESPACE/TOPIC",
    "--approvals NAMESPACE/QUEUE",
    "--command PATH",
    "--traffic",
)


def _preset(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> str | None:
    """Check the name of a preset."""
    if value is None:
        return None
    from bridge.sinks.webhook.presets.registry import PRESETS  # noqa: PLC0415 - aiohttp

    return click.Choice([*PRESETS]).convert(value, param, ctx)


@click.command()
@click.option(
    "--slack",
    is_flag=False,
    flag_value=_ASK,
    default="",
    metavar="[env:NAME|file:PATH]",
    help="Post to Slack. Without a reference, the address of the incoming webhook is "
    "asked for, or read from standard input.",
)
@click.option(
    "--webhook", metavar="URL", default="", help="Post each event to this URL."
)
@click.option(
    "--preset",
    metavar="NAME",
    callback=_preset,
    help="The service behind --webhook; without it, the body is a CloudEvent.",
)
@click.option(
    "--preset-key",
    metavar="env:NAME|file:PATH",
    default="",
    help="The key or token of that service.",
)
@click.option(
    "--email",
    metavar="RELAY/ADDRESS",
    default="",
    help="Send mails to this address through this SMTP relay.",
)
@click.option(
    "--approvals",
    metavar="NAMESPACE/QUEUE",
    default="",
    help="Take approvals from this queue, which needs sessions.",
)
@click.option(
    "--servicebus",
    metavar="NAMESPACE/TOPIC",
    default="",
    help="Send each event to this topic, with the VM's managed identity.",
)
@click.option(
    "--command",
    metavar="PATH",
    default="",
    help="Run this command before an event of this VM, and again after the event.",
)
@click.option(
    "--traffic", is_flag=True, help="Answer the health probe of a load balancer."
)
@click.option(
    "-o",
    "--output",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar=CONFIG_VARIABLE,
    default=default_config(os.environ),
    show_default=f"${CONFIG_VARIABLE}, else {default_config(os.environ)}",
    help="The configuration file to write.",
)
def init(path: Path, **options: str | bool) -> None:
    """Write a first configuration. No file is overwritten.

    The options say what the bridge shall do. Without options, the command asks
    questions on the terminal. The new file passes 'sebridge check'. Each secret goes
    into a file of its own in the same directory, and the configuration refers to that
    file.

    Example: sebridge init --webhook https://hooks.example.com/events -o bridge.toml
    """
    _refuse_present(path)
    options["preset"] = options["preset"] or ""
    wishes = Wishes(**options)  # type: ignore[arg-type]  # click has checked them
    _refuse_lone_preset(wishes)
    if wishes.is_empty:
        wishes = _asked()
    if wishes.is_empty:
        fail(f"nothing to write: use at least one of {', '.join(_FLAGS)}", code=WRONG)
    path = path.absolute()
    wishes = replace(wishes, by_unit=Service().is_installed)
    wishes, secrets = _set_apart(wishes, path.parent)
    try:
        _write(path, first_text(wishes), secrets, is_open=wishes.has_no_secret)
    except OSError as error:
        what = f"{error.filename or path} cannot be written: {error.strerror}"
        raise BridgeError(what) from error
    _print_next_steps(path, wishes, secrets)


def _refuse_present(path: Path) -> None:
    """End the command if the configuration file exists and is not empty."""
    if os.path.lexists(path) and not _is_blank(path):
        fail(f"{path} exists and is not overwritten: -o names another file")


def _refuse_lone_preset(wishes: Wishes) -> None:
    """End the command if a preset has no URL, or a key no preset or no reference."""
    if wishes.preset and not wishes.webhook:
        fail("--preset needs --webhook URL, the address of the service", code=WRONG)
    if wishes.preset_key and not wishes.preset:
        fail("--preset-key needs --preset NAME", code=WRONG)
    if wishes.preset_key and not wishes.preset_key.startswith(_REFERENCES):
        fail(f"--preset-key: {_SEEN_BY_ALL}file:PATH", code=WRONG)


def _is_blank(path: Path) -> bool:
    """Whether a file holds only comments, like the one that install.sh creates."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, ValueError):
        return False
    return all(line.lstrip()[:1] in {"", "#"} for line in lines)


def _asked() -> Wishes:
    """Ask the user what the bridge shall do; without a terminal, return no wishes."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return Wishes()
    click.echo("What shall the bridge do? Press Enter to leave something out.")
    slack = click.confirm("Post to Slack, through an incoming webhook?", default=False)
    return Wishes(
        slack=_ASK if slack else "",
        webhook=_answer("Post each event to this URL", "webhook"),
        email=_answer("Send mails through RELAY/ADDRESS", "email"),
        servicebus=_answer(
            "Send each event to this Service Bus NAMESPACE/TOPIC", "servicebus"
        ),
        approvals=_answer("Take approvals from this NAMESPACE/QUEUE", "approvals"),
        command=_answer("Run this command before an event (absolute path)", "command"),
        traffic=click.confirm(
            "Answer the health probe of a load balancer?", default=False
        ),
    )


def _answer(question: str, wish: str) -> str:
    """Ask until the answer is valid by itself, or empty."""
    while True:
        answer: str = click.prompt(question, default="", show_default=False).strip()
        try:
            if answer:
                text = first_text(Wishes(**{wish: answer}))  # type: ignore[arg-type]  # all texts
                refuse_faults(text, os.environ, "this answer")
        except ConfigError as error:
            for fault in error.faults:
                click.echo(printable(fault.removeprefix("this answer: ")))
        else:
            return answer


def _set_apart(wishes: Wishes, folder: Path) -> tuple[Wishes, dict[Path, str]]:
    """Replace secrets by references; return also the files with the secrets."""
    secrets = dict[Path, str]()
    if wishes.slack == _ASK:
        file = folder / _SLACK_FILE
        if not file.exists():  # otherwise keep the file of an earlier call
            secrets[file] = _slack_address()
        wishes = replace(wishes, slack=f"file:{file.as_posix()}")
    elif wishes.slack and not wishes.slack.startswith(_REFERENCES):
        what = f"--slack: {_SEEN_BY_ALL}file:PATH"
        fail(f"{what}, or --slack alone, which asks for it", code=WRONG)
    url = Address(wishes.webhook, {})
    if url.is_literal and url.holds_secret("url"):
        file = folder / _WEBHOOK_FILE
        secrets[file] = wishes.webhook
        wishes = replace(wishes, webhook=f"file:{file.as_posix()}")
    return wishes, secrets


def _slack_address() -> str:
    """Read the address of the incoming webhook, without showing it."""
    if sys.stdin.isatty():
        address: str = click.prompt("Address of the incoming webhook", hide_input=True)
    else:
        address = sys.stdin.readline()
    if not address.strip():
        what = "the address of the incoming webhook is missing: it is expected as the "
        fail(f"--slack: {what}first line of standard input", code=WRONG)
    return address.strip()


def _write(
    path: Path, text: str, secrets: Mapping[Path, str], *, is_open: bool
) -> None:
    """Write the configuration and its secrets, or nothing at all.

    Args:
        path: the configuration file.
        text: the content of the configuration file.
        secrets: content by file, for the files beside it.
        is_open: whether everybody may read the configuration.

    Raises:
        ConfigError: the configuration has faults.
        OSError: a file cannot be written, or exists already.
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
    os.link(path, aside)  # fails if that file exists: nothing is overwritten
    path.unlink()
    undo.callback(aside.rename, path)


def _create(path: Path, text: str, mode: int, undo: ExitStack) -> None:
    """Create a file; fail if it exists."""
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    undo.callback(path.unlink)
    with os.fdopen(number, "w", encoding="utf-8", newline="\n") as file:
        _share(file.fileno(), path.parent)
        file.write(text)


def _share(number: int, folder: Path) -> None:
    """Give the service's group the right to read the file.

    That is the group of the directory, if other users cannot enter the directory.
    """
    if sys.platform == "win32":
        return  # on Windows, rights are inherited from the directory
    found = folder.stat()
    if not found.st_mode & stat.S_IRWXO and found.st_gid != os.fstat(number).st_gid:
        with suppress(PermissionError):  # only root or a member of the group may do so
            os.fchown(number, -1, found.st_gid)
            os.fchmod(number, 0o640)


def _print_next_steps(path: Path, wishes: Wishes, secrets: Mapping[Path, str]) -> None:
    """Print what was written, and which command comes next."""
    for file in (*secrets, path):
        click.echo(printable(f"{file}: written"))
    if wishes.command:
        _print_command_steps(wishes)
    where = "" if path == default_config(os.environ) else f" -c {path}"
    click.echo(printable(f"next: sebridge check --connect{where}"))


def _print_command_steps(wishes: Wishes) -> None:
    """Print the next step, or a warning, before the command can be run."""
    if wishes.hook is not None:
        if Path(wishes.command) != _HOOKS / wishes.hook:
            hook = shlex.quote(f"{wishes.hook}={wishes.command}")
            click.echo(printable(f"next: sudo infra/install.sh --hook {hook}"))
        return
    command, account = (wishes.command,), Service().account()
    trouble = ownership.trouble_of(command, account.uid)
    if trouble := trouble or ownership.unusable(command, account):
        click.echo(printable(f"warning: {trouble}"), err=True)


# -- ``sebridge schema``: the JSON Schemas ---------------------------------------------


@click.command()
@click.argument("what", type=click.Choice(["config", "hub", "event", "approval"]))
def schema(what: str) -> None:
    """Print the JSON Schema of one kind of document.

    Example: sebridge schema event
    """
    if what == "hub":
        from bridge.hub import load  # noqa: PLC0415 - most machines have no hub

        click.echo(load.schema_text(), nl=False)
        return
    click.echo(json_schema.text(what), nl=False)

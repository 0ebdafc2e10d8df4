"""Makes the text of a first configuration file from the user's choices.

Nothing is written here. ``refuse_faults`` reads the environment and the files of
secrets; all other functions are pure.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping

from msgspec import Struct

from bridge.configuration.load import parse
from bridge.events.vocabulary import DISRUPTIVE
from bridge.foundation.errors import ConfigError

_HOST = ".servicebus.windows.net"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_POWERSHELL = (
    *("powershell.exe", "-NoProfile", "-ExecutionPolicy", "Bypass", "-File"),
)
_OTHERS = {"slack", "webhook", "bus", "mail"}  # names of the other sinks
_HEAD = """\
#:schema ./config.schema.json
# scheduled-events-bridge, written by "sebridge init".
# config/bridge.example.toml has every key with its unit, default and reason.
# An editor completes and checks keys by the first line after:
#     sebridge schema config > config.schema.json
"""


class Wishes(Struct, frozen=True, kw_only=True):
    """The user's choices: what the bridge shall do. An empty text leaves a part out.

    Attributes:
        slack: a reference (``env:`` or ``file:``) to the incoming webhook of Slack.
        webhook: the URL that events are posted to, or a reference to it.
        preset: the name of the service behind ``webhook``; "" = any CloudEvents.
        preset_key: a reference to the key of that service.
        email: ``RELAY/ADDRESS``, the relay and who gets the mails.
        approvals: ``NAMESPACE/QUEUE``.
        servicebus: ``NAMESPACE/TOPIC``.
        command: the program that is run before an event, and again after it.
        by_unit: whether root runs the command as a hook, because the service itself
            does not have the rights that a hook needs.
        traffic: whether to answer the health probe of a load balancer.
    """

    slack: str = ""
    webhook: str = ""
    preset: str = ""
    preset_key: str = ""
    email: str = ""
    approvals: str = ""
    servicebus: str = ""
    command: str = ""
    by_unit: bool = False
    traffic: bool = False

    @property
    def hook(self) -> str | None:
        """The name of the hook that root runs; None if the service runs the command."""
        name = _file_of(self.command).partition(".")[0]
        return name if self.by_unit and _NAME.fullmatch(name) else None

    @property
    def has_no_secret(self) -> bool:
        """Whether the file holds no secret; the path of the URL may be a secret."""
        return not self.webhook or self.webhook.startswith(("env:", "file:"))

    @property
    def is_empty(self) -> bool:
        """Whether nothing was chosen."""
        sinks = (self.slack, self.webhook, self.servicebus, self.email, self.command)
        return not (any(sinks) or self.approvals or self.traffic)


def first_text(wishes: Wishes) -> str:
    """Return the text of the file.

    Raises:
        ConfigError: a value cannot be written as TOML.
    """
    text = "\n".join([_HEAD, *_tables(wishes)])
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(["an argument is not UTF-8 text"]) from error
    return text


def refuse_faults(text: str, environ: Mapping[str, str], file: str) -> None:
    """Validate the text of a configuration.

    Raises:
        ConfigError: holds every fault with its place.
    """
    parse(tomllib.loads(text), file=file, environ=environ)


def _tables(wishes: Wishes) -> Iterator[str]:
    if wishes.slack:
        yield _sink("slack", "slack", f"webhook_url = {_quoted(wishes.slack)}")
    if wishes.webhook:
        yield _sink("webhook", "webhook", "\n".join(_webhook(wishes)))
    if wishes.email:
        yield _email(wishes.email)
    if wishes.servicebus:
        namespace, topic = _namespace_and("TOPIC", "servicebus", wishes.servicebus)
        keys = f"namespace = {_quoted(namespace)}\ntopic = {_quoted(topic)}"
        yield _sink("bus", "servicebus", keys)
    if wishes.command:
        yield _command(wishes.command, wishes.hook)
    if wishes.approvals:
        namespace, queue = _namespace_and("QUEUE", "approvals", wishes.approvals)
        yield f"""\
[approvals]        # the queue needs sessions: each VM reads its own
namespace = {_quoted(namespace)}
queue = {_quoted(queue)}
sessions = ["{{vm_id}}"]
"""
    if wishes.traffic:
        yield _TRAFFIC


def _webhook(wishes: Wishes) -> Iterator[str]:
    if wishes.preset:
        yield f"preset = {_quoted(wishes.preset)}"
    yield f"url = {_quoted(wishes.webhook)}"
    if wishes.preset_key:
        from bridge.sinks.webhook.presets.registry import PRESETS  # noqa: PLC0415 - aiohttp, 9 MiB

        preset = next(PRESETS[name] for name in PRESETS if name == wishes.preset)
        name = "token" if preset.auth.type == "bearer" else "value"
        yield f"\n[sinks.auth]\n{name} = {_quoted(wishes.preset_key)}"


def _email(text: str) -> str:
    """Return the sink of ``RELAY/ADDRESS``.

    Raises:
        ConfigError: one of the two is missing.
    """
    relay, _, address = text.partition("/")
    if not relay or "@" not in address:
        raise ConfigError([f"--email: {text!r} must be RELAY/ADDRESS"])
    domain = address.rpartition("@")[2]
    return f"""\
[[sinks]]
name = "mail"
type = "email"
host = {_quoted(relay)}
sender = {_quoted(f"sebridge@{domain}")}
recipients = [{_quoted(address)}]
# username and password, if the relay asks for them: config/sinks/email.md

[sinks.when]
scope = "first"    # one mail for each step, not one from each VM
"""


def _sink(name: str, kind: str, keys: str) -> str:
    return f"[[sinks]]\nname = {_quoted(name)}\ntype = {_quoted(kind)}\n{keys}\n"


def _namespace_and(what: str, option: str, text: str) -> tuple[str, str]:
    """Split ``NAMESPACE/TOPIC``; a topic or queue may have slashes of its own.

    Raises:
        ConfigError: one of the two is missing.
    """
    namespace, _, name = text.partition("/")
    if not namespace or not name:
        raise ConfigError([f"--{option}: {text!r} must be NAMESPACE/{what}"])
    return namespace if "." in namespace else namespace + _HOST, name


def _command(program: str, hook: str | None) -> str:
    command = [program]
    if program.lower().endswith(".ps1"):
        command = [*_POWERSHELL, program]
    words = ", ".join(map(_quoted, command))
    key = f"command = [{words}]"
    if hook is not None:
        key = f"unit = {_quoted(f'sebridge-hook@{hook}.service')}"
    return f"{_sink(_name_of(_file_of(program)), 'command', key)}{_WHEN}"


def _file_of(program: str) -> str:
    return re.split(r"[/\\]", program)[-1]


def _name_of(file: str) -> str:
    """Return the sink name for a command: its file name, if allowed and free."""
    stem = file.partition(".")[0]
    is_free = _NAME.fullmatch(stem) and stem.lower() not in _OTHERS
    return stem if is_free else "command"


def _quoted(text: str) -> str:
    """Return a string in TOML: as in JSON, except for the character DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


_WHEN = f"""\
lead = "30m"       # prepare at most this long before NotBefore
timeout = "10m"    # the longest run
[sinks.when]       # without Freeze: it lasts seconds and needs no drain
event_types = {json.dumps(DISRUPTIVE)}
"""
_TRAFFIC = """\
[traffic]
listen = "0.0.0.0:9466"    # the health probe of a load balancer: 200 in, 503 out
lead = "5m"                # out of rotation this long before NotBefore
"""

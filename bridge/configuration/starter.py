"""A first configuration: the text of a file, from the few things it is to do.

Pure but for what reads the result: nothing is written here.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bridge.configuration.load import parse
from bridge.foundation.errors import ConfigError

_HOST = ".servicebus.windows.net"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_POWERSHELL = ("powershell.exe", "-NoProfile", "-File")
_OTHERS = {"slack", "webhook", "bus"}  # names of the sinks beside a command's
_HEAD = """\
# scheduled-events-bridge, written by "sebridge init".
# config/bridge.example.toml has every key with its unit, default and reason.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What a first configuration is to do; "" is: not this.

    Attributes:
        slack: the incoming webhook of Slack, referred to by ``env:`` or ``file:``.
        webhook: the URL that events are posted to, or a reference to it.
        servicebus: ``NAMESPACE/TOPIC``.
        command: the program that is run before an event and when it is over.
        by_unit: whether root runs it, by the unit that infra/install.sh --hook made.
        traffic: whether the probe for load balancers answers.
    """

    slack: str = ""
    webhook: str = ""
    servicebus: str = ""
    command: str = ""
    by_unit: bool = False
    traffic: bool = False

    @property
    def is_open(self) -> bool:
        """Whether the file holds no secret: a URL may have one in its path."""
        return not self.webhook or self.webhook.startswith(("env:", "file:"))

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all is asked for."""
        sinks = (self.slack, self.webhook, self.servicebus, self.command)
        return not (any(sinks) or self.traffic)


def first_text(wishes: Wishes) -> str:
    """Return the text of the file.

    Raises:
        ConfigError: a wish cannot be written into a file.
    """
    text = "\n".join([_HEAD, *_tables(wishes)])
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(["an argument is not UTF-8 text"]) from error
    return text


def refuse_faults(text: str, environ: Mapping[str, str], file: str) -> None:
    """Look whether a text is a configuration.

    Raises:
        ConfigError: with every fault there is, each with its place.
    """
    parse(tomllib.loads(text), file=file, environ=environ)


def _tables(wishes: Wishes) -> Iterator[str]:
    if wishes.slack:
        yield _sink("slack", "slack", f"webhook_url = {_quoted(wishes.slack)}")
    if wishes.webhook:
        yield _sink("webhook", "webhook", f"url = {_quoted(wishes.webhook)}")
    if wishes.servicebus:
        namespace, topic = _namespace_and_topic(wishes.servicebus)
        keys = f"namespace = {_quoted(namespace)}\ntopic = {_quoted(topic)}"
        yield _sink("bus", "servicebus", keys)
    if wishes.command:
        yield _command(wishes.command, by_unit=wishes.by_unit)
    if wishes.traffic:
        yield _TRAFFIC


def _sink(name: str, kind: str, keys: str) -> str:
    return f"[[sinks]]\nname = {_quoted(name)}\ntype = {_quoted(kind)}\n{keys}\n"


def _namespace_and_topic(text: str) -> tuple[str, str]:
    """Split ``NAMESPACE/TOPIC``; a topic may have slashes of its own.

    Raises:
        ConfigError: one of the two is missing.
    """
    namespace, _, topic = text.partition("/")
    if not namespace or not topic:
        raise ConfigError([f"--servicebus: {text!r} must be NAMESPACE/TOPIC"])
    return namespace if "." in namespace else namespace + _HOST, topic


def _command(program: str, *, by_unit: bool) -> str:
    command = [program]
    if program.lower().endswith(".ps1"):
        command = [*_POWERSHELL, program]
    words = ", ".join(map(_quoted, command))
    key, name = f"command = [{words}]", re.split(r"[/\\]", program)[-1]
    if by_unit and _NAME.fullmatch(name):
        key = f"unit = {_quoted(f'sebridge-hook@{name}.service')}"
    return f"{_sink(_name_of(name), 'command', key)}{_WHEN}"


def _name_of(file: str) -> str:
    """Return the name of a command's sink: that of its file, if it can be one."""
    stem = file.partition(".")[0]
    is_free = _NAME.fullmatch(stem) and stem.lower() not in _OTHERS
    return stem if is_free else "command"


def _quoted(text: str) -> str:
    """Return a string as TOML writes it: as JSON does, but for DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


_WHEN = """\
lead = "30m"       # it prepares no earlier than so long before NotBefore
timeout = "10m"    # of one run
[sinks.when]       # a Freeze lasts seconds: nothing is drained for it
event_types = ["Reboot", "Redeploy", "Preempt", "Terminate"]
"""
_TRAFFIC = """\
[traffic]
listen = "0.0.0.0:9466"    # the health probe of a load balancer: 200 in, 503 out
lead = "5m"                # out so long before NotBefore
"""

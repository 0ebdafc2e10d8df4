"""How a test reaches a sink: one file beside this one for each type."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Options = Mapping[str, object]
Place = tuple[str | int, ...]  # such as ("auth", "token")


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """What a test has for a sink to send to.

    Attributes:
        http: the URL of a server that takes every request, without a slash at its end.
        bus: the connection string of a Service Bus.
        topic: a topic there.
        mail: the port of a mail relay on 127.0.0.1.
        domain: the domain of the mail's sender.
        logs: the port of a syslog receiver on 127.0.0.1, over TCP.
        folder: an empty directory.
    """

    http: str
    bus: str
    topic: str = "scheduled-events"
    mail: int
    domain: str = "contoso.com"
    logs: int = 0
    folder: Path = Path()


def nothing(*_: object) -> Options:
    """Return no options."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkWay:
    """How a test reaches a sink.

    Attributes:
        over: what is between the sink and its receiver: HTTP, another network protocol
            or nothing, on this machine.
        least: the keys without which there is no such sink, but name and type.
        more: the keys that the tests of the contract set as well.
        address: the key of ``least`` that says where the receiver is, and is a secret;
            required over HTTP.
        secrets: the secrets in ``least`` and ``more``, as texts that nobody may see.
        unreachable: options with which the receiver cannot be reached; over HTTP and
            for Service Bus the servers are told to refuse.
        beside: what else a key with a secret needs, or None for a key that it replaces.
        shapes: what a secret has to look like, where a plain text will not do.
    """

    over: Literal["http", "network", "machine"]
    least: Callable[[Servers], Options]
    more: Callable[[Servers], Options] = nothing
    address: str = ""
    secrets: tuple[str, ...] = ()
    unreachable: Options = field(default_factory=dict)
    beside: Callable[[Place, Servers], Options] = nothing
    shapes: Mapping[Place, Callable[[str], str]] = field(default_factory=dict)

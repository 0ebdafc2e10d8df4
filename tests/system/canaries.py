"""A secret of its own in every key that may hold one; the keys come from the code.

A new key of a type that is a secret is found here by itself. Where a plain text will
not do for it, ``shapes`` of the sink's way (``tests/sinks/ways``) says what will, and
``beside`` what else it needs.
"""

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgspec

from bridge.approvals.config import ApprovalsConfig
from bridge.configuration.config import Settings
from bridge.foundation.sections import Section
from bridge.foundation.values import Secret
from bridge.sinks.registry import SINK_TYPES
from tests.sinks.sink_ways import WAYS, wayless
from tests.sinks.ways.way import Place, Servers

Table = dict[str, Any]

HEADER = "x-api-key"  # what a name gives away is hidden though it stands in the open
TOPICS = ("absent", "scheduled-events")
_NOWHERE = "Endpoint=sb://absent.invalid/;SharedAccessKeyName=k;SharedAccessKey=k"


def places(annotation: Any, at: Place = ()) -> Iterator[Place]:
    """Yield where secrets may stand in what has a type."""
    if get_origin(annotation) in {Union, UnionType}:
        for part in get_args(annotation):
            yield from places(part, at)
    elif get_origin(annotation) is dict:
        yield from places(get_args(annotation)[1], (*at, HEADER))
    elif get_origin(annotation) in {tuple, list}:
        yield from places(get_args(annotation)[0], (*at, 0))
    elif isinstance(annotation, type) and issubclass(annotation, Secret):
        yield at
    elif isinstance(annotation, type) and issubclass(annotation, Section):
        for field in msgspec.structs.fields(annotation):
            yield from places(field.type, (*at, field.name))


def of_sinks() -> list[tuple[str, Place]]:
    """Return the type of a sink and the place in it, of every secret."""
    return [
        (name, place)
        for name, kind in SINK_TYPES.items()
        for place in dict.fromkeys(places(kind))
    ]


def of_approvals() -> list[Place]:
    return [*dict.fromkeys(places(ApprovalsConfig))]


def of_settings() -> list[Place]:
    return [*dict.fromkeys(places(Settings))]


@dataclass(frozen=True, slots=True)
class Canary:
    """A secret that is told apart from every other.

    Attributes:
        core: what is looked for: it looks the same in a URL as elsewhere.
    """

    place: str
    core: str

    @classmethod
    def of(cls, place: str) -> "Canary":
        # letters first, and small ones: the form that Slack's own words have
        return cls(place, "canary" + hashlib.sha256(place.encode()).hexdigest()[:34])

    @property
    def text(self) -> str:
        """The secret, with what a URL and base64 would change."""
        return f"+{self.core}/="

    @property
    def needles(self) -> list[bytes]:
        """What must not be seen: itself, and in base64 wherever it begins there."""
        return [
            self.core.encode(),
            *(
                base64.b64encode(b"\0" * skip + self.core.encode())[4:-4]
                for skip in range(3)
            ),
            self.core.encode().hex().encode(),
        ]


@dataclass(frozen=True, slots=True)
class World:
    """What the forwarder is put into.

    Attributes:
        echo: a receiver that answers with all it was told.
        bus: a connection string without its key.
        relay: the port of a mail relay that answers with all it was told.
    """

    imds: str
    echo: str
    bus: str
    relay: int


def shaped(place: Place, canary: Canary, status: int, world: World) -> str:
    """Return what a key takes for a value, with the canary in it."""
    url = f"{world.echo.replace('//', f'//user:{canary.core}@')}/{status}/"
    match place:
        case (str(key), *_) if key.endswith("url"):
            return f"{url}{canary.core}?sig={canary.core}"
        case ("proxy" | "http_proxy", *_):
            return url.removesuffix(f"/{status}/")
        case ("connection_string", *_):
            return f"{world.bus}SharedAccessKey={canary.text};"
        case _:
            return canary.text


def base(kind: str, status: int, world: World) -> Table:
    """Return the least that a sink of a type needs."""
    assert wayless([kind]) == []
    least = WAYS[kind].least(servers(status, world))
    return {**least, "when": {"scope": "all", "lifecycle": True}}


def servers(status: int, world: World) -> Servers:
    """Return what a sink sends to that is to be answered with a status."""
    return Servers(
        http=f"{world.echo}/{status}",
        bus=_NOWHERE,
        topic=TOPICS[status == 200],
        mail=world.relay,
        domain=f"{status}.contoso.com",  # the relay answers as it says
    )


def beside(place: Place) -> Table:
    """Return what else a key of a namespace needs."""
    return {"transport": "amqp-websocket"} if place == ("http_proxy",) else {}


def put(table: Table, place: Place, value: object) -> None:
    """Set a value deep in a table."""
    here: Any = table
    for key, after in zip(place, (*place[1:], None), strict=True):
        if after is None:
            inner: object = value
        elif isinstance(here, dict) and key in here:
            inner = here[key]
        else:
            inner = [None] if isinstance(after, int) else {}
        here[key] = inner
        here = inner


def sink(kind: str, place: Place, status: int, world: World, value: str) -> Table:
    """Return a sink with a secret at a place of it."""
    found = base(kind, status, world)
    found |= beside(place) | dict(WAYS[kind].beside(place, servers(status, world)))
    put(found, place, value)
    words = "-".join(str(part).replace("_", "-") for part in place)
    own = {"name": f"{kind}-{words}-{status}", "type": kind}
    return {**own, **{key: item for key, item in found.items() if item is not None}}


def toml(root: Table) -> str:
    """Write a configuration."""
    lines = []
    for key, value in root.items():
        if isinstance(value, list):
            for item in value:
                lines += [f"[[{key}]]", *_pairs(item)]
        elif isinstance(value, dict):
            lines += [f"[{key}]", *_pairs(value)]
    return "\n".join(lines) + "\n"


def _pairs(table: Table) -> Iterator[str]:
    return (f"{json.dumps(key)} = {_value(item)}" for key, item in table.items())


def _value(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(_pairs(value)) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value)


class Hiding:
    """Puts secrets where they may be: the environment, a file, or the open."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.environ = {"SEBRIDGE__SHUTDOWN_GRACE": "1s"}
        self.canaries: list[Canary] = []

    def reference(self, canary: Canary, value: str) -> str:
        number = len(self.canaries)
        self.canaries.append(canary)
        if number % 3 == 0:
            return value
        if number % 3 == 1:
            self.environ[f"HIDDEN_{number}"] = value
            return f"env:HIDDEN_{number}"
        path = self._folder / f"hidden-{number}"
        path.write_text(value)
        return f"file:{path}"


def found_in(canaries: Sequence[Canary], shown: Mapping[str, bytes]) -> list[str]:
    """Return which secret is seen where."""
    return [
        f"the secret of {canary.place} is in {what}: …{_around(text, needle)!r}…"
        for canary in canaries
        for what, text in shown.items()
        for needle in canary.needles
        if needle in text
    ]


def _around(text: bytes, needle: bytes) -> bytes:
    at = text.index(needle)
    return text[max(0, at - 120) : at + len(needle) + 20]

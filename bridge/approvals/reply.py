"""Replies on their way: who may be answered, and how a reply rests in the outbox. Pure.

A reply goes where the sender of an approval says, within the same namespace, so only
entities that the configuration names are answered: and never one that would bring
the answer back as an approval, or among the events, nor anything that lies below it.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Self
from urllib.parse import urlsplit

import msgspec
import orjson

# What entities are called; no "$DeadLetterQueue", "..", "%2D" or other way round.
_NAME = "[A-Za-z0-9][A-Za-z0-9._~-]*"
_PATH = re.compile(f"{_NAME}(/{_NAME})*")
_GLOB = frozenset("*?[")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyEnvelope:
    """A reply with its address: the body of a ``reply`` item of the outbox.

    Attributes:
        message_id: a hash of its cause: the same at each attempt.
        correlation_id: the MessageId of the approval.
        session_id: its ReplyToSessionId.
        body: JSON, as text.
    """

    entity: str
    message_id: str
    correlation_id: str | None
    session_id: str | None
    body: str

    def to_json(self) -> bytes:
        """Return the envelope as it is stored."""
        return orjson.dumps({_camel(k): v for k, v in asdict(self).items()})

    @classmethod
    def from_json(cls, stored: bytes) -> Self:
        """Read back what ``to_json`` wrote.

        Raises:
            msgspec.ValidationError: it was not written by ``to_json``.
        """
        members = msgspec.json.decode(stored, type=dict[str, str | None])
        return msgspec.convert(
            {name: members.get(_camel(name)) for name in _FIELDS}, cls
        )


_FIELDS = tuple(ReplyEnvelope.__slots__)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyRules:
    """Which entities may be answered, compared without case.

    Attributes:
        allowed: globs.
        forbidden: names of the approval entity and of the sinks' in the same
            namespace, whatever the globs say.
    """

    allowed: tuple[str, ...]
    forbidden: frozenset[str]

    @classmethod
    def of(cls, allowed: Iterable[str], forbidden: Iterable[str]) -> Self:
        """Make rules of names in any case."""
        return cls(
            allowed=tuple(glob.casefold() for glob in allowed),
            forbidden=frozenset(_bare(name) for name in forbidden),
        )

    def entity(self, reply_to: str) -> str | None:
        """Return the entity that a ReplyTo names; None if it may not be answered."""
        entity = _entity(reply_to)
        name = _bare(entity)
        if not _PATH.fullmatch(entity) or not self.forbidden.isdisjoint(_upward(name)):
            return None
        return entity if any(fnmatchcase(name, glob) for glob in self.allowed) else None


def first_named(names: Iterable[str], rules: ReplyRules) -> str | None:
    """Return the first name, none of them a glob, that may be answered; None = none."""
    found = (rules.entity(name) for name in names if _GLOB.isdisjoint(name))
    return next((entity for entity in found if entity), None)


def unanswered(names: Iterable[str], rules: ReplyRules) -> Iterator[str]:
    """Yield the names, none of them a glob, that may never be answered."""
    for name in names:
        if _GLOB.isdisjoint(name) and rules.entity(name) is None:
            yield name


def _bare(entity: str) -> str:
    """Return a name as it is compared."""
    return entity.strip("/").casefold()


def _upward(name: str) -> Iterator[str]:
    """Yield a path and all that it lies below."""
    while name:
        yield name
        name = name.rpartition("/")[0]


def _entity(reply_to: str) -> str:
    """Return the entity in a name, a path or a URL."""
    try:
        path = urlsplit(reply_to).path if "://" in reply_to else reply_to
    except ValueError:
        return ""
    host, _, rest = path.strip("/").partition("/")
    return rest if ".servicebus." in host.casefold() else path.strip("/")

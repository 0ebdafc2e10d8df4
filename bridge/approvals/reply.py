"""Decides where a reply may be sent, and how the outbox stores it. Pure.

The sender of an approval names the entity for the reply, in the same namespace. So only
entities that the configuration allows are accepted. Never allowed are the approval
entity, the entities of sinks, and everything below them.
"""

import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Self
from urllib.parse import urlsplit

from msgspec import Struct

# Valid names of entities; not "$DeadLetterQueue", "..", "%2D" or similar tricks.
_NAME = "[A-Za-z0-9][A-Za-z0-9._~-]*"
_PATH = re.compile(f"{_NAME}(/{_NAME})*")
_GLOB = frozenset("*?[")


class ReplyEnvelope(Struct, frozen=True, kw_only=True, rename="camel"):
    """A reply with its address: as JSON, the body of a delivery of kind ``reply``.

    Attributes:
        entity: the queue or topic for the reply.
        message_id: a hash of the cause: the same at each attempt, so that repeats can
            be recognised.
        correlation_id: the MessageId of the approval.
        session_id: the ReplyToSessionId of the approval.
        body: JSON, as text.
    """

    entity: str
    message_id: str
    correlation_id: str | None
    session_id: str | None
    body: str


class ReplyRules(Struct, frozen=True, kw_only=True):
    """The entities to which replies may be sent; case does not matter.

    Attributes:
        allowed: patterns (globs) for names.
        forbidden: the names of the approval entity and of the sinks' entities in the
            same namespace; never allowed, even if a pattern fits.
    """

    allowed: tuple[str, ...]
    forbidden: frozenset[str]

    @classmethod
    def of(cls, allowed: Iterable[str], forbidden: Iterable[str]) -> Self:
        """Make rules from names; case does not matter."""
        return cls(
            allowed=tuple(glob.casefold() for glob in allowed),
            forbidden=frozenset(_bare(name) for name in forbidden),
        )

    def entity(self, reply_to: str) -> str | None:
        """Return the entity that a ReplyTo names; None if no reply may go there."""
        entity = _entity(reply_to)
        name = _bare(entity)
        if not _PATH.fullmatch(entity) or not self.forbidden.isdisjoint(_upward(name)):
            return None
        return entity if any(fnmatchcase(name, glob) for glob in self.allowed) else None


def first_named(names: Iterable[str], rules: ReplyRules) -> str | None:
    """Return the first allowed name that is not a pattern; None if there is none."""
    found = (rules.entity(name) for name in names if _GLOB.isdisjoint(name))
    return next((entity for entity in found if entity), None)


def unanswered(names: Iterable[str], rules: ReplyRules) -> Iterator[str]:
    """Yield the names, but not patterns, to which no reply may be sent."""
    for name in names:
        if _GLOB.isdisjoint(name) and rules.entity(name) is None:
            yield name


def _bare(entity: str) -> str:
    """Return a name for comparisons: no outer slashes, lower case."""
    return entity.strip("/").casefold()


def _upward(name: str) -> Iterator[str]:
    """Yield a path and all its parents."""
    while name:
        yield name
        name = name.rpartition("/")[0]


def _entity(reply_to: str) -> str:
    """Return the entity from a name, a path or a URL; "" if the URL is invalid."""
    try:
        path = urlsplit(reply_to).path if "://" in reply_to else reply_to
    except ValueError:
        return ""
    host, _, rest = path.strip("/").partition("/")
    return rest if ".servicebus." in host.casefold() else path.strip("/")

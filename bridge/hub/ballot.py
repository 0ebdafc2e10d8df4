"""Who may approve, whose votes are enough, and what makes votes void. Pure.

One text in two places, the hub and the Functions app: a test holds the two equal. It
imports nothing but the standard library.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

_TERMS: Final = ("DurationInSeconds", "EventSource", "EventType", "NotBefore")


def digest(event: Mapping[str, object]) -> str:
    """Return the fingerprint of what a person agrees to.

    32 hex digits of SHA-256 over the JSON list of DurationInSeconds, EventSource,
    EventType, NotBefore (null where absent) and Resources (sorted), with sorted keys,
    no white space, in UTF-8. EventStatus and Description are not part of it.

    Args:
        event: the IMDS object.
    """
    names = event.get("Resources")
    resources = sorted(map(str, names)) if isinstance(names, list) else []
    terms = [*(event.get(name) for name in _TERMS), resources]
    text = json.dumps(terms, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]


def lacking(voters: Collection[str], wanted: int) -> int:
    """Return how many different people are still wanted."""
    return max(wanted - len(set(voters)), 0)


def voids(
    seen: Mapping[str, object],
    event: Mapping[str, object],
    *,
    is_earlier: bool,
) -> bool:
    """Whether a vote for what was seen no longer counts for the event as it is now.

    Another type or source, more resources, a longer or no longer known duration, or an
    earlier start makes it void; a lesser change does not.

    Args:
        seen: the IMDS object that was voted for.
        event: the IMDS object now.
        is_earlier: whether its NotBefore is earlier, or not known any more.
    """
    before, after = _seconds(seen), _seconds(event)
    is_longer = before is not None and (after is None or after > before)
    return (
        any(
            _word(seen, key) != _word(event, key)
            for key in ("EventType", "EventSource")
        )
        or not _names(event) <= _names(seen)
        or is_longer
        or is_earlier
    )


def _word(event: Mapping[str, object], key: str) -> str:
    return str(event.get(key) or "").casefold()


def _names(event: Mapping[str, object]) -> set[str]:
    names = event.get("Resources")
    return {_bare(str(name)) for name in names} if isinstance(names, list) else set()


def _seconds(event: Mapping[str, object]) -> int | None:
    """Return the duration; None where it is not known."""
    found = event.get("DurationInSeconds")
    if not isinstance(found, int) or isinstance(found, bool):
        return None
    return found if found >= 0 else None


class Rule(StrEnum):
    """How many must agree before an event is approved."""

    ONE = "one"
    TWO = "two"
    RESOURCES = "resources"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Who may vote, and what decides.

    Attributes:
        approvers: ids of persons; none: nobody. An id of Slack has no hyphen, and an
            object id of Entra has some.
        rule: ``one`` of them, ``two`` different ones, or a vote for every name in
            Resources, because an approval frees all of them at once.
        owners: for ``resources``: globs of names, without case, and who may vote
            for them.
        team: the only workspace that clicks are taken from; empty: any that the app
            is installed in.
        same: ids of one person in two places, in both directions.
    """

    approvers: frozenset[str] = frozenset()
    rule: Rule = Rule.ONE
    owners: Mapping[str, frozenset[str]] = field(default_factory=dict)
    team: str = ""
    same: Mapping[str, str] = field(default_factory=dict)

    def refusal(self, user: str, team: str) -> str | None:
        """Return why a person may not decide on anything; None: they may."""
        if self.team and team != self.team:
            return "Clicks from this workspace are not accepted."
        if user not in self.approvers:
            return "You are not among those who may decide on scheduled events."
        return None

    def is_same(self, user: str, other: str) -> bool:
        """Whether two ids are known to be of one person."""
        return other in self._ids(user)

    def is_answerable(self, user: str, names: Collection[str]) -> bool:
        """Whether a person has a vote on an event with these Resources."""
        return self.rule is not Rule.RESOURCES or bool(self._owned(user, names))

    def missing(self, voters: Collection[str], names: Collection[str]) -> list[str]:
        """Return what is still wanted, in words; empty: the event is approved.

        Args:
            voters: who has approved, each once.
            names: the Resources of the event.
        """
        match self.rule:
            case Rule.ONE:
                return [] if voters else ["one person"]
            case Rule.TWO:
                wanted = min(lacking(ids, 2) for ids in self._by_place(voters))
                return [f"{wanted} more"] if wanted else []
            case Rule.RESOURCES:
                voted = {name for each in voters for name in self._owned(each, names)}
                # an event that names nothing is nobody's to approve
                return sorted(set(names) - voted) if names else ["a named resource"]

    def _ids(self, user: str) -> set[str]:
        """Return all known ids of a person."""
        return {user, self.same.get(user, user)}

    def _by_place(self, voters: Collection[str]) -> tuple[set[str], set[str]]:
        """Return the voters' ids of each place.

        Two ids of one place are two persons. An id of Slack and an object id may be
        one, unless both persons have an id of the same place.
        """
        found = {each for voter in voters for each in self._ids(voter)}
        objects = {each for each in found if "-" in each}
        return found - objects, objects

    def _owned(self, user: str, names: Collection[str]) -> set[str]:
        ids = self._ids(user)
        globs = [glob for glob, users in self.owners.items() if ids & users]
        return {
            name
            for name in names
            if any(fnmatchcase(_bare(name), _bare(glob)) for glob in globs)
        }


def _bare(name: str) -> str:
    """Return a name as it is compared: Azure puts an underscore before some."""
    return name.removeprefix("_").lower()

"""The voting rules: who may approve, how many must, and when a vote is void. Pure.

The hub and the Functions app have the same file: a test compares the two copies. It
imports only the standard library.
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
    """Return the fingerprint of the part of an event that a person agrees to.

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


def missing_votes(voters: Collection[str], wanted: int) -> int:
    """Return how many more different people must approve."""
    return max(wanted - len(set(voters)), 0)


def voids(
    seen: Mapping[str, object],
    event: Mapping[str, object],
    *,
    is_earlier: bool,
) -> bool:
    """Whether a change of an event makes a vote for it void.

    A vote is void after a change to another type or source, to more resources, to an
    earlier start, or to a longer duration or one that is not known. Other changes do
    not matter.

    Args:
        seen: the IMDS object that the person saw when voting.
        event: the current IMDS object.
        is_earlier: whether its NotBefore is earlier now, or not known any more.
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
    """Return the duration of an event in seconds; None = not known."""
    found = event.get("DurationInSeconds")
    if not isinstance(found, int) or isinstance(found, bool):
        return None
    return found if found >= 0 else None


class Rule(StrEnum):
    """How many people must agree before an event is approved."""

    ONE = "one"
    TWO = "two"
    RESOURCES = "resources"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Who may vote, and how many votes approve an event.

    Attributes:
        approvers: the ids of people who may vote; empty: nobody. An id of Slack has no
            hyphen, an object id of Entra has hyphens.
        rule: ``one`` of them, ``two`` different ones, or a vote for every name in
            Resources, because an approval starts the event on all of them at once.
        owners: for ``resources``: patterns of resource names, and who may vote for
            them. Case does not matter.
        team: the only Slack workspace whose clicks are accepted; empty: any workspace
            that the app is installed in.
        same: maps the Slack id of a person to the Entra id, and the other way round.
    """

    approvers: frozenset[str] = frozenset()
    rule: Rule = Rule.ONE
    owners: Mapping[str, frozenset[str]] = field(default_factory=dict)
    team: str = ""
    same: Mapping[str, str] = field(default_factory=dict)

    def refusal(self, user: str, team: str) -> str | None:
        """Return why a person may not decide on events; None: they may."""
        if self.team and team != self.team:
            return "Clicks from this workspace are not accepted."
        if user not in self.approvers:
            return "You are not among those who may decide on scheduled events."
        return None

    def is_same(self, user: str, other: str) -> bool:
        """Whether two ids are known to belong to the same person."""
        return other in self._ids(user)

    def is_answerable(self, user: str, names: Collection[str]) -> bool:
        """Whether a person has a vote on an event with these Resources."""
        return self.rule is not Rule.RESOURCES or bool(self._owned(user, names))

    def missing(self, voters: Collection[str], names: Collection[str]) -> list[str]:
        """Return which votes are missing, as texts; empty: the event is approved.

        Args:
            voters: the ids of the people who have approved, without duplicates.
            names: the Resources of the event.
        """
        match self.rule:
            case Rule.ONE:
                return [] if voters else ["one person"]
            case Rule.TWO:
                wanted = min(missing_votes(ids, 2) for ids in self._by_place(voters))
                return [f"{wanted} more"] if wanted else []
            case Rule.RESOURCES:
                voted = {name for each in voters for name in self._owned(each, names)}
                # nobody owns an event without Resources, so nobody can approve it
                return sorted(set(names) - voted) if names else ["a named resource"]

    def _ids(self, user: str) -> set[str]:
        """Return all known ids of a person."""
        return {user, self.same.get(user, user)}

    def _by_place(self, voters: Collection[str]) -> tuple[set[str], set[str]]:
        """Return the voters' ids in Slack, and their ids in Entra.

        Two ids in the same place are two people. An id in Slack and one in Entra may be
        the same person, unless an id of both people is known in one place.
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
    """Return a name in lower case, without the underscore that Azure may prepend."""
    return name.removeprefix("_").lower()

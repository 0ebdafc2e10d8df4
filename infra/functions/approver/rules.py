"""Who may approve, and whose votes are enough. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase


class Rule(StrEnum):
    """How many must agree before an event is approved."""

    ONE = "one"
    TWO = "two"
    RESOURCES = "resources"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Who may vote, and what decides.

    Attributes:
        approvers: user ids of Slack; none: nobody.
        rule: ``one`` of them, ``two`` different ones, or a vote for every name in
            Resources, because an approval frees all of them at once.
        owners: for ``resources``: globs of names, without case, and who may vote
            for them.
        team: the only workspace that clicks are taken from; empty: any that the app
            is installed in.
    """

    approvers: frozenset[str] = frozenset()
    rule: Rule = Rule.ONE
    owners: Mapping[str, frozenset[str]] = field(default_factory=dict)
    team: str = ""

    def refusal(self, user: str, team: str) -> str | None:
        """Return why a person may not decide on anything; None: they may."""
        if self.team and team != self.team:
            return "Clicks from this workspace are not taken."
        if user not in self.approvers:
            return "You are not among those who may decide on scheduled events."
        return None

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
                wanted = 2 - len(set(voters))
                return [] if wanted <= 0 else [f"{wanted} more"]
            case Rule.RESOURCES:
                voted = {name for each in voters for name in self._owned(each, names)}
                # an event that names nothing is nobody's to approve
                return sorted(set(names) - voted) if names else ["a named resource"]

    def _owned(self, user: str, names: Collection[str]) -> set[str]:
        globs = [glob for glob, users in self.owners.items() if user in users]
        return {
            name
            for name in names
            if any(fnmatchcase(_bare(name), _bare(glob)) for glob in globs)
        }


def _bare(name: str) -> str:
    """Return a name as it is compared: Azure puts an underscore before some."""
    return name.removeprefix("_").lower()

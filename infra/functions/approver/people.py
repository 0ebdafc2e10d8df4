"""Names for those who decide. Pure.

In approvals and in the state, a person is ``slack:U012AB3CD`` or ``teams:`` and an
object id. What Teams says a person is called is kept beside it, for people to read.
"""

import re
from collections.abc import Sequence
from typing import Final

_OBJECT_ID: Final = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
)


def is_object_id(value: str) -> bool:
    """Whether it is an object id of Entra, in small letters."""
    return _OBJECT_ID.fullmatch(value) is not None


def place_of(user: str) -> str:
    """Return where an id is from: Slack or Teams."""
    return "Teams" if is_object_id(user) else "Slack"


def person_of(user: str) -> str:
    """Return the name of a voter in approvals."""
    return f"{place_of(user).lower()}:{user}"


def mentions(people: Sequence[str], names: Sequence[str], place: str) -> str:
    """Return people as text for Slack or Teams, with commas.

    Args:
        people: as ``person_of`` names them; anybody else is a tool.
        names: what Teams calls each, in the same order; "" where that is not known.
        place: where it is shown. Slack gets mentions, and names are escaped for it.
    """
    known = [*names, *[""] * len(people)]
    shown = _in_slack if place == "Slack" else _in_teams
    return ", ".join(map(shown, people, known))


def escaped(text: str) -> str:
    """Return text with Slack's special characters escaped."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _in_slack(person: str, name: str) -> str:
    if person.startswith("slack:"):
        return f"<@{person.removeprefix('slack:')}>"
    return escaped(_in_teams(person, name))


def _in_teams(person: str, name: str) -> str:
    if person.startswith("teams:"):
        return name or "somebody in Teams"
    is_of_slack = person.startswith("slack:")
    return f"{person.removeprefix('slack:')} in Slack" if is_of_slack else "a tool"

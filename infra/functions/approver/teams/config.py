"""The app settings of the bot. All faults are reported at once, with the others."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self
from urllib.parse import urlsplit

from approver.people import is_object_id

_DEFAULTS: Final = {
    "TEAMS_SERVICE": "https://smba.trafficmanager.net/teams/",
    "TEAMS_LOGIN": "https://login.microsoftonline.com/",
    "TEAMS_GRAPH": "https://graph.microsoft.com/",
    "TEAMS_KEYS": "https://login.botframework.com/v1/",
    "TEAMS_ISSUER": "https://api.botframework.com",
}
_REQUIRED: Final = ("TEAMS_APP_ID", "TEAMS_TENANT", "TEAMS_CONVERSATION")
SETTINGS: Final = (*_DEFAULTS, *_REQUIRED, "TEAMS_APP_SECRET", "TEAMS_GROUPS")
_MOST_GROUPS: Final = 20  # of one question to Microsoft Graph


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamsConfig:
    """How to be a bot in Teams.

    Attributes:
        app_id: of the bot; for a managed identity its client id.
        tenant: the only tenant whose people may click.
        conversation: the channel or group chat that gets the cards.
        secret: of the bot's app registration; empty: the bot is a managed identity.
        groups: object ids of groups whose members may decide.
        service: where activities are sent to.
        login: where the bot gets its tokens, if it has a secret.
        graph: where members of groups are asked for.
        keys: what lies above the OpenID metadata of the Bot Framework.
        issuer: of the tokens that Teams calls with; also what the bot's own are for.
    """

    app_id: str
    tenant: str
    conversation: str
    secret: str = field(default="", repr=False)
    groups: tuple[str, ...] = ()
    service: str = _DEFAULTS["TEAMS_SERVICE"]
    login: str = _DEFAULTS["TEAMS_LOGIN"]
    graph: str = _DEFAULTS["TEAMS_GRAPH"]
    keys: str = _DEFAULTS["TEAMS_KEYS"]
    issuer: str = _DEFAULTS["TEAMS_ISSUER"]

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str], faults: list[str]
    ) -> Self | None:
        """Read the settings; None: there is no bot, or ``faults`` got longer."""
        given = {name: environ.get(name, "").strip() for name in SETTINGS}
        own = given | {name: given[name].lower() for name in _REQUIRED[:2]}
        if not any(own[name] for name in (*_REQUIRED, "TEAMS_APP_SECRET")):
            return None
        groups = _words(own["TEAMS_GROUPS"])
        before = len(faults)
        _check(own, groups, faults)
        if len(faults) > before:
            return None
        urls = {name: own[name] or default for name, default in _DEFAULTS.items()}
        return cls(
            app_id=own["TEAMS_APP_ID"],
            tenant=own["TEAMS_TENANT"],
            conversation=own["TEAMS_CONVERSATION"],
            secret=own["TEAMS_APP_SECRET"],
            groups=groups,
            service=urls["TEAMS_SERVICE"],
            login=urls["TEAMS_LOGIN"],
            graph=urls["TEAMS_GRAPH"],
            keys=urls["TEAMS_KEYS"],
            issuer=urls["TEAMS_ISSUER"],
        )


def is_base(url: str) -> bool:
    """Whether every URL that begins with ``url`` has the same host.

    Plain http is for a local Slack or Teams: http://127.0.0.1:PORT/.
    """
    try:
        parts = urlsplit(url)
        is_local = (parts.scheme, parts.hostname) == ("http", "127.0.0.1")
        is_whole = bool(parts.port) if is_local else parts.port != 0
    except ValueError:  # a port that is not a number, an unclosed bracket
        return False
    return (
        (is_local or parts.scheme == "https")
        and is_whole
        and bool(parts.hostname)
        and url == f"{parts.scheme}://{parts.netloc}{parts.path}"
        and "@" not in parts.netloc
        and parts.path.endswith("/")
    )


def _check(own: Mapping[str, str], groups: tuple[str, ...], faults: list[str]) -> None:
    faults.extend(
        f"{name} must be a GUID such as 00000000-0000-0000-0000-000000000000"
        for name in ("TEAMS_APP_ID", "TEAMS_TENANT")
        if not is_object_id(own[name])
    )
    if not own["TEAMS_CONVERSATION"].startswith("19:"):
        faults.append(
            "TEAMS_CONVERSATION must be the id of a channel or a group chat: 19:…"
        )
    if wrong := [each for each in groups if not is_object_id(each)]:
        faults.append(f"TEAMS_GROUPS: not an object id: {', '.join(wrong)}")
    if len(groups) > _MOST_GROUPS:
        faults.append(f"TEAMS_GROUPS must not name more than {_MOST_GROUPS} groups")
    for name, default in _DEFAULTS.items():
        url = own[name] or default
        if not is_base(url if name != "TEAMS_ISSUER" else f"{url}/"):
            faults.append(f"{name} must be an https URL such as {default}")


def _words(text: str) -> tuple[str, ...]:
    return tuple(each.strip().lower() for each in text.split(",") if each.strip())

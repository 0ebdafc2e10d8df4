"""The app settings, read from the environment. All faults are reported at once.

README.md beside function_app.py lists them for users.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from approver.errors import SettingsError
from approver.people import is_object_id
from approver.teams.config import SETTINGS as TEAMS_SETTINGS
from approver.teams.config import TeamsConfig, is_base
from approver.vote_rules import Rule, Rules

_USER: Final = re.compile(r"[UW][A-Z0-9]{2,}", re.ASCII)
_KEY_ID: Final = re.compile(
    r"https://[A-Za-z0-9-]+\.(vault|managedhsm)"
    r"\.(azure\.net|azure\.cn|usgovcloudapi\.net)"
    r"/keys/[A-Za-z0-9-]+/[0-9a-f]{32}",
    re.ASCII,
)
_LEAST_SECRET: Final = 32  # characters, without blanks around them
# The unresolved text that the platform leaves if the app may not read the secret.
_REFERENCES: Final = ("@microsoft.keyvault(", "@microsoft.appconfiguration(")
_NAMES: Final = {
    "CLICKS_QUEUE": "approver-clicks",
    "VOTES_QUEUE": "approver-votes",
    "EVENT_TYPE_PREFIX": "sebridge",
    "APPROVER_SOURCE": "urn:sebridge:approver",
}
_HOOKS: Final = "https://hooks.slack.com/"
_SETTINGS: Final = {
    "SERVICEBUS",
    "SERVICEBUS__fullyQualifiedNamespace",
    "SERVICEBUS__clientId",
    "APPROVAL_ENTITIES",
    "APPROVERS",
    "VOTE_RULE",
    "RESOURCE_APPROVERS",
    "SLACK_SIGNING_SECRET",
    "SLACK_TEAM",
    "SLACK_HOOKS",
    "BUTTON_SECRET",
    "BUTTON_SECRET_PREVIOUS",
    "SIGN_KEY",
    *_NAMES,
    *TEAMS_SETTINGS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bus:
    """How to connect to the namespace, with the same settings as the triggers.

    Attributes:
        connection_string: if there is no identity, as with a local broker.
        namespace: fully qualified, for an identity.
        client_id: of a user-assigned identity; empty: the system-assigned one.
    """

    connection_string: str = field(default="", repr=False)
    namespace: str = ""
    client_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The app settings.

    Attributes:
        bus: how to connect to the namespace.
        approval_entities: where StartRequests may be sent; the first is the default.
        clicks_queue: where clicks wait for the function that counts them.
        votes_queue: with sessions, whose states are the ballots; it has no messages.
        prefix: the prefix of the types of the bridge's CloudEvents.
        source: the source of the CloudEvents of this app.
        rules: who may approve, and which votes decide.
        button_secrets: keys that sign buttons; the second one for a rotation.
        signing_secret: of the Slack app; empty: no click is accepted.
        slack_hooks: the required beginning of every response_url.
        teams: the bot in Teams; None: there is none.
        sign_keys: ids of keys in Key Vault that sign StartRequests; (): none does.
    """

    bus: Bus
    approval_entities: tuple[str, ...]
    clicks_queue: str
    votes_queue: str
    prefix: str
    source: str
    rules: Rules
    button_secrets: tuple[str, ...] = field(repr=False)
    signing_secret: str = field(repr=False)
    slack_hooks: str = _HOOKS
    teams: TeamsConfig | None = None
    sign_keys: tuple[str, ...] = ()

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Self:
        """Read the settings.

        Raises:
            SettingsError: names all faults.
        """
        if faults := list(_unresolved(environ)):
            raise SettingsError("; ".join(faults))
        faults = [*_bus_faults(environ), *_secret_faults(environ)]
        faults += _key_faults(_words(environ.get("SIGN_KEY", "")))
        rules = _rules(environ, faults)
        teams = TeamsConfig.from_environment(environ, faults)
        if faults:
            raise SettingsError("; ".join(faults))
        secrets = (environ.get("BUTTON_SECRET"), environ.get("BUTTON_SECRET_PREVIOUS"))
        return cls(
            bus=Bus(
                connection_string=environ.get("SERVICEBUS", ""),
                namespace=environ.get("SERVICEBUS__fullyQualifiedNamespace", ""),
                client_id=environ.get("SERVICEBUS__clientId", ""),
            ),
            approval_entities=_words(
                environ.get("APPROVAL_ENTITIES", "vm-approvals-sessions")
            ),
            clicks_queue=_name(environ, "CLICKS_QUEUE"),
            votes_queue=_name(environ, "VOTES_QUEUE"),
            prefix=_name(environ, "EVENT_TYPE_PREFIX"),
            source=_name(environ, "APPROVER_SOURCE"),
            rules=rules,
            button_secrets=tuple(each for each in secrets if each),
            signing_secret=environ.get("SLACK_SIGNING_SECRET", "").strip(),
            slack_hooks=environ.get("SLACK_HOOKS", _HOOKS),
            teams=teams,
            sign_keys=_words(environ.get("SIGN_KEY", "")),
        )


def _words(text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(",") if each.strip())


def _name(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name, _NAMES[name])


def _unresolved(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the settings that hold a reference in place of its value.

    The text of a reference is not secret: everybody who may read the app's
    configuration knows it.
    """
    for name in sorted(environ):
        if name in _SETTINGS and environ[name].strip().lower().startswith(_REFERENCES):
            yield (
                f"{name} holds a reference that was not resolved: the app's identity "
                "must be allowed to read what it names (Key Vault Secrets User)"
            )


def _bus_faults(environ: Mapping[str, str]) -> Iterator[str]:
    ways = ("SERVICEBUS", "SERVICEBUS__fullyQualifiedNamespace")
    if sum(bool(environ.get(way, "").strip()) for way in ways) != 1:
        yield f"exactly one of {' and '.join(ways)} must be set"
    if not _words(environ.get("APPROVAL_ENTITIES", "vm-approvals-sessions")):
        yield "APPROVAL_ENTITIES must name an entity"
    for name in _NAMES:
        if not _name(environ, name).strip():
            yield f"{name} must not be empty; leave it out for {_NAMES[name]}"
    if not is_base(environ.get("SLACK_HOOKS", _HOOKS)):
        yield (
            "SLACK_HOOKS must be an https URL with a host that ends in a slash: "
            f"{_HOOKS}"
        )


def _secret_faults(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the secrets that are too short; never show one."""
    for name in ("BUTTON_SECRET", "BUTTON_SECRET_PREVIOUS"):
        secret = environ.get(name, "")
        if secret and len(secret.strip()) < _LEAST_SECRET:
            yield f"{name} must have at least {_LEAST_SECRET} characters, blanks aside"
    signing = environ.get("SLACK_SIGNING_SECRET", "")
    if signing and not signing.strip():
        yield "SLACK_SIGNING_SECRET must be empty, or the signing secret of the app"
    if signing and not environ.get("BUTTON_SECRET"):
        yield "BUTTON_SECRET must be set where SLACK_SIGNING_SECRET is"


def _key_faults(keys: tuple[str, ...]) -> Iterator[str]:
    """Yield what is wrong with SIGN_KEY.

    A key without a version would change before the bridges know the new one. Another
    host would get a token for Key Vault.
    """
    if len(keys) > 2:
        yield "SIGN_KEY must name one key, or two while one is replaced"
    for key in keys:
        if not _KEY_ID.fullmatch(key):
            yield (
                "SIGN_KEY must be the id of a key with its version: "
                f"https://NAME.vault.azure.net/keys/KEY/VERSION, not {key}"
            )


def _rules(environ: Mapping[str, str], faults: list[str]) -> Rules:
    same = _pairs(environ.get("APPROVERS", ""), faults)
    rule = environ.get("VOTE_RULE", Rule.ONE)
    if rule not in set(Rule):
        faults.append(f"VOTE_RULE must be one of {', '.join(Rule)}")
        rule = Rule.ONE
    owners = _owners(environ.get("RESOURCE_APPROVERS", ""), faults)
    if strangers := sorted(set().union(*owners.values()) - set(same)):
        faults.append(f"RESOURCE_APPROVERS: not in APPROVERS: {', '.join(strangers)}")
    if (rule == Rule.RESOURCES) != bool(owners):
        faults.append("RESOURCE_APPROVERS belongs to VOTE_RULE=resources: set both")
    return Rules(
        approvers=frozenset(same),
        rule=Rule(rule),
        owners=owners,
        team=environ.get("SLACK_TEAM", ""),
        same={one: other for one, other in same.items() if one != other},
    )


def _pairs(text: str, faults: list[str]) -> dict[str, str]:
    """Return each approver's id, and another id of that person, or the same one."""
    found: dict[str, str] = {}
    for entry in _words(text):
        ids = [_id(each) for each in entry.split("=")]
        kinds = [is_object_id(each) for each in ids]
        is_known = all(is_object_id(each) or _USER.fullmatch(each) for each in ids)
        if not is_known or len(ids) > 2 or len(set(kinds)) < len(ids):
            faults.append(
                f"APPROVERS: not a Slack user id (U…, W…), an object id, or both with ="
                f" between them: {entry}"
            )
        elif any(each in found for each in ids):
            faults.append(f"APPROVERS: an id stands there twice: {entry}")
        else:
            found |= {ids[0]: ids[-1], ids[-1]: ids[0]}
    return found


def _id(text: str) -> str:
    """Return an id as it is compared: Entra writes object ids in small letters."""
    small = text.strip().lower()
    return small if is_object_id(small) else text.strip()


def _owners(text: str, faults: list[str]) -> dict[str, frozenset[str]]:
    """Return who may vote for which names."""
    if not text.strip():
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if isinstance(found, dict) and all(map(_is_texts, found.values())):
        return {glob: frozenset(map(_id, users)) for glob, users in found.items()}
    faults.append('RESOURCE_APPROVERS must be JSON such as {"web-*": ["U012AB3CD"]}')
    return {}


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)

"""The app settings, read from the environment. All faults are reported at once.

README.md beside function_app.py lists them for users.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Self
from urllib.parse import urlsplit

from approver.errors import SettingsError
from approver.rules import Rule, Rules

_USER: Final = re.compile(r"[UW][A-Z0-9]{2,}", re.ASCII)
_LEAST_SECRET: Final = 32  # characters, without blanks around them
# What the platform leaves standing where the app may not read the secret.
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
    *_NAMES,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bus:
    """How the namespace is reached, in the names that triggers use too.

    Attributes:
        connection_string: where there is no identity, as with a local broker.
        namespace: fully qualified, for an identity.
        client_id: of a user-assigned identity; empty: the system-assigned one.
    """

    connection_string: str = field(default="", repr=False)
    namespace: str = ""
    client_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the app is told.

    Attributes:
        bus: how the namespace is reached.
        approval_entities: where StartRequests may be put; the first is the default.
        clicks_queue: where clicks wait for the function that counts them.
        votes_queue: with sessions, whose states are the ballots; it has no messages.
        prefix: what the types of the bridge's CloudEvents begin with.
        source: of the CloudEvents of this app.
        rules: who may approve, and what decides.
        button_secrets: what buttons are signed with; the second for a rotation.
        signing_secret: of the Slack app; empty: no click is taken.
        slack_hooks: what every response_url must begin with.
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

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Self:
        """Read the settings.

        Raises:
            SettingsError: names everything that is wrong.
        """
        if faults := list(_unresolved(environ)):
            raise SettingsError("; ".join(faults))
        faults = [*_bus_faults(environ), *_secret_faults(environ)]
        rules = _rules(environ, faults)
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
        )


def _words(text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(",") if each.strip())


def _name(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name, _NAMES[name])


def _unresolved(environ: Mapping[str, str]) -> Iterator[str]:
    """Name the settings of this app that hold a reference in place of its value.

    The text of a reference is known to whoever may read the app's configuration.
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
    if not _is_base(environ.get("SLACK_HOOKS", _HOOKS)):
        yield (
            "SLACK_HOOKS must be an https URL with a host that ends in a slash: "
            f"{_HOOKS}"
        )


def _is_base(url: str) -> bool:
    """Whether no URL of another host begins with ``url``.

    Plain http is for a local Slack: http://127.0.0.1:PORT/.
    """
    try:
        parts = urlsplit(url)
        is_local = (parts.scheme, parts.hostname) == ("http", "127.0.0.1")
        is_whole = bool(parts.port) if is_local else parts.port != 0
    except ValueError:  # a port that is no number, a bracket that is not closed
        return False
    return (
        (is_local or parts.scheme == "https")
        and is_whole
        and bool(parts.hostname)
        and url == f"{parts.scheme}://{parts.netloc}{parts.path}"
        and "@" not in parts.netloc
        and parts.path.endswith("/")
    )


def _secret_faults(environ: Mapping[str, str]) -> Iterator[str]:
    """Name the secrets that are too short; never show one."""
    for name in ("BUTTON_SECRET", "BUTTON_SECRET_PREVIOUS"):
        secret = environ.get(name, "")
        if secret and len(secret.strip()) < _LEAST_SECRET:
            yield f"{name} must have at least {_LEAST_SECRET} characters, blanks aside"
    signing = environ.get("SLACK_SIGNING_SECRET", "")
    if signing and not signing.strip():
        yield "SLACK_SIGNING_SECRET must be empty, or the signing secret of the app"
    if signing and not environ.get("BUTTON_SECRET"):
        yield "BUTTON_SECRET must be set where SLACK_SIGNING_SECRET is"


def _rules(environ: Mapping[str, str], faults: list[str]) -> Rules:
    approvers = frozenset(_words(environ.get("APPROVERS", "")))
    if wrong := sorted(each for each in approvers if not _USER.fullmatch(each)):
        faults.append(f"APPROVERS: no user id of Slack (U…, W…): {', '.join(wrong)}")
    rule = environ.get("VOTE_RULE", Rule.ONE)
    if rule not in set(Rule):
        faults.append(f"VOTE_RULE must be one of {', '.join(Rule)}")
        rule = Rule.ONE
    owners = _owners(environ.get("RESOURCE_APPROVERS", ""), faults)
    if strangers := sorted(set().union(*owners.values()) - approvers):
        faults.append(f"RESOURCE_APPROVERS: not in APPROVERS: {', '.join(strangers)}")
    if (rule == Rule.RESOURCES) != bool(owners):
        faults.append("RESOURCE_APPROVERS belongs to VOTE_RULE=resources: set both")
    return Rules(
        approvers=approvers,
        rule=Rule(rule),
        owners=owners,
        team=environ.get("SLACK_TEAM", ""),
    )


def _owners(text: str, faults: list[str]) -> dict[str, frozenset[str]]:
    """Return who may vote for which names."""
    if not text.strip():
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if isinstance(found, dict) and all(map(_is_texts, found.values())):
        return {glob: frozenset(users) for glob, users in found.items()}
    faults.append('RESOURCE_APPROVERS must be JSON such as {"web-*": ["U012AB3CD"]}')
    return {}


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)

"""Read and write the rules of shared access in a description.

A rule without keys gets new ones, which its description shows.

Source: azure-servicebus 7.15 (AuthorizationRule) and @azure/service-bus 7.9
        (buildRawAuthorizationRule).
"""

import secrets
from base64 import b64encode
from xml.etree.ElementTree import Element  # the type alone  # nosec B405

from bridge.simulator.servicebus.access import AccessRule, Right
from bridge.simulator.servicebus.administration.atom import (
    attribute,
    bad,
    child,
    element,
    local,
    text_of,
)

AUTHORIZATION = "AuthorizationRules"

_RULE = "AuthorizationRule"
_TYPE = attribute("i:type", "SharedAccessAuthorizationRule")
_KEYS = ("PrimaryKey", "SecondaryKey")
_KEY_BYTES = 32


def read_authorization(given: Element) -> tuple[AccessRule, ...]:
    """Return the rules of a description.

    Raises:
        AdministrationError: a rule has no name, no right or an unknown right, or two
            rules have the same name.
    """
    rules = child(given, AUTHORIZATION)
    found = [] if rules is None else [each for each in rules if local(each) == _RULE]
    read = tuple(_read(each) for each in found)
    names = [rule.name for rule in read]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise bad(f"Two {AUTHORIZATION} have the KeyName {twice[0]!r}.")
    return read


def written_authorization(rules: object) -> str:
    """Return the rules as an element."""
    kept = rules if isinstance(rules, tuple) else ()
    inner = "".join(_written(rule) for rule in kept if isinstance(rule, AccessRule))
    return f"<{AUTHORIZATION}>{inner}</{AUTHORIZATION}>"


def _read(given: Element) -> AccessRule:
    name, rights = text_of(given, "KeyName"), child(given, "Rights")
    if not name:
        raise bad(f"An {_RULE} needs a KeyName.")
    texts = [] if rights is None else [(each.text or "").strip() for each in rights]
    try:
        read = frozenset(Right(text) for text in texts)
    except ValueError as error:
        raise bad(
            f"AccessRights are {', '.join(Right)}, not {', '.join(texts)!r}."
        ) from error
    if not read:
        raise bad(f"The {_RULE} {name!r} needs Rights: some of {', '.join(Right)}.")
    keys = tuple(text_of(given, each) or _new_key() for each in _KEYS)
    return AccessRule(name=name, keys=keys, rights=read)


def _new_key() -> str:
    return b64encode(secrets.token_bytes(_KEY_BYTES)).decode()


def _written(rule: AccessRule) -> str:
    rights = "".join(
        element("AccessRights", right)
        for right in reversed(Right)
        if right in rule.rights
    )
    keys = [element(name, key) for name, key in zip(_KEYS, rule.keys, strict=False)]
    parts = [
        element("ClaimType", "SharedAccessKey"),
        element("ClaimValue", "None"),
        f"<Rights>{rights}</Rights>",
        element("KeyName", rule.name),
        *keys,
    ]
    return f"<{_RULE}{_TYPE}>{''.join(parts)}</{_RULE}>"

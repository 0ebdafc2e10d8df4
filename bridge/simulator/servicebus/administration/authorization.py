"""The rules of shared access in a description: kept and told again.

They are not in force: only those of the entity file are.

Source: azure-servicebus 7.15 (AuthorizationRule) and @azure/service-bus 7.9
        (buildRawAuthorizationRule).
"""

from dataclasses import dataclass
from xml.etree.ElementTree import Element  # the type alone  # nosec B405

from bridge.simulator.servicebus.access import AccessRule, Right
from bridge.simulator.servicebus.administration.atom import (
    attribute,
    child,
    element,
    local,
    text_of,
)
from bridge.simulator.servicebus.administration.errors import bad

AUTHORIZATION = "AuthorizationRules"

_RULE = "AuthorizationRule"
_TYPE = attribute("i:type", "SharedAccessAuthorizationRule")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRule:
    """A rule as it was given."""

    name: str
    rights: tuple[Right, ...]
    keys: tuple[str, ...]

    @classmethod
    def of(cls, rule: AccessRule) -> "KeptRule":
        """Return a rule of the entity file."""
        return cls(name=rule.name, rights=tuple(sorted(rule.rights)), keys=rule.keys)


def read_authorization(given: Element) -> tuple[KeptRule, ...]:
    """Return the rules of a description.

    Raises:
        AdministrationError: one has no name, or a right that does not exist.
    """
    rules = child(given, AUTHORIZATION)
    found = [] if rules is None else [each for each in rules if local(each) == _RULE]
    return tuple(_read(each) for each in found)


def written_authorization(rules: object) -> str:
    """Return the rules as an element."""
    kept = rules if isinstance(rules, tuple) else ()
    inner = "".join(_written(rule) for rule in kept if isinstance(rule, KeptRule))
    return f"<{AUTHORIZATION}>{inner}</{AUTHORIZATION}>"


def _read(given: Element) -> KeptRule:
    name, rights = text_of(given, "KeyName"), child(given, "Rights")
    if name is None:
        raise bad(f"An {_RULE} needs a KeyName.")
    texts = [] if rights is None else [(each.text or "").strip() for each in rights]
    try:
        read = tuple(Right(text) for text in texts)
    except ValueError as error:
        raise bad(
            f"AccessRights are {', '.join(Right)}, not {', '.join(texts)!r}."
        ) from error
    keys = (text_of(given, "PrimaryKey"), text_of(given, "SecondaryKey"))
    return KeptRule(name=name, rights=read, keys=tuple(key for key in keys if key))


def _written(rule: KeptRule) -> str:
    rights = "".join(element("AccessRights", right) for right in rule.rights)
    keys = [
        element(name, key)
        for name, key in zip(("PrimaryKey", "SecondaryKey"), rule.keys, strict=False)
    ]
    parts = [
        element("ClaimType", "SharedAccessKey"),
        element("ClaimValue", "None"),
        f"<Rights>{rights}</Rights>",
        element("KeyName", rule.name),
        *keys,
    ]
    return f"<{_RULE}{_TYPE}>{''.join(parts)}</{_RULE}>"

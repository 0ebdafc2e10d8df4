"""Read the rules of shared access in an entity file: an extension of its format.

    "AuthorizationRules": [
      {"Name": "sender", "PrimaryKey": "...", "SecondaryKey": "...", "Rights": ["Send"]}
    ]

stands beside Name of a namespace, a queue or a topic. Microsoft's emulator has only one
key, which gives all rights, and refuses this field.
"""

from bridge.simulator.servicebus.access import AccessRule, Right
from bridge.simulator.servicebus.config_fields import Fields

_FIELD = "AuthorizationRules"


def read_access(place: Fields) -> tuple[AccessRule, ...]:
    """Return the rules of a namespace, queue or topic, and report their faults."""
    rules = tuple(_read_rule(rule) for rule in place.items(_FIELD))
    names = [rule.name for rule in rules]
    for name in sorted({name for name in names if names.count(name) > 1}):
        place.fault(f"{_FIELD} has the name {name!r} more than once")
    return rules


def _read_rule(rule: Fields) -> AccessRule:
    keys = (rule.text("PrimaryKey", required=True), rule.text("SecondaryKey"))
    read = AccessRule(
        name=rule.text("Name", required=True),
        keys=tuple(key for key in keys if key),
        rights=frozenset(
            Right(right) for right in rule.choices("Rights", tuple(Right))
        ),
    )
    rule.close_strictly()
    return read

"""SQL filters of an entity file that compare for equality only.

    sys.MessageId = '123456' AND userProp1 = 'value1'

admits the same messages as a correlation filter with the same properties, and is read
as one. 1=1 admits everything. Pure.

Source: Azure Service Bus, subscription rule SQL filter syntax.
"""

import re

from bridge.simulator.servicebus.settings import CorrelationFilter

SYSTEM_PROPERTIES = (
    "ContentType",
    "CorrelationId",
    "Label",
    "MessageId",
    "ReplyTo",
    "ReplyToSessionId",
    "SessionId",
    "To",
)

_BY_LOWER_NAME = {name.lower(): name for name in SYSTEM_PROPERTIES}
_EVERYTHING = re.compile(r"\s*1\s*=\s*1\s*")
_EQUALITY = re.compile(
    r"\s*(?:(?P<scope>sys|user)\s*\.\s*)?"
    r"(?:(?P<name>[A-Za-z_]\w*)|\[(?P<bracketed>[^\]]+)\])\s*=\s*"
    r"(?:'(?P<text>(?:[^']|'')*)'|(?P<whole>-?\d+)(?![\w.])|(?P<flag>true|false)\b)\s*",
    re.IGNORECASE,
)
_AND = re.compile(r"AND\b", re.IGNORECASE)


def parse_sql(expression: str) -> CorrelationFilter | None:
    """Read a SQL filter; None: it admits everything.

    Raises:
        ValueError: it does more than compare for equality.
    """
    if _EVERYTHING.fullmatch(expression):
        return None
    system: dict[str, str] = {}
    application: dict[str, object] = {}
    for equality in _equalities(expression):
        name, value = equality["name"] or equality["bracketed"], _value(equality)
        if (equality["scope"] or "").lower() != "sys":
            agrees = application.setdefault(name, value) == value
        elif isinstance(value, str) and name.lower() in _BY_LOWER_NAME:
            agrees = system.setdefault(_BY_LOWER_NAME[name.lower()], value) == value
        else:
            agrees = False
        if not agrees:
            raise _unsupported(expression)
    return CorrelationFilter(properties=system, application_properties=application)


def _equalities(expression: str) -> list[re.Match[str]]:
    found = []
    place = 0
    while match := _EQUALITY.match(expression, place):
        found.append(match)
        if match.end() == len(expression):
            return found
        if (joined := _AND.match(expression, match.end())) is None:
            break
        place = joined.end()
    raise _unsupported(expression)


def _value(equality: re.Match[str]) -> str | int | bool:
    if equality["text"] is not None:
        return equality["text"].replace("''", "'")
    if equality["whole"] is not None:
        return int(equality["whole"])
    return equality["flag"].lower() == "true"


def _unsupported(expression: str) -> ValueError:
    return ValueError(
        f"the SQL filter {expression!r} is not supported: only property = 'text', a "
        "whole number, TRUE or FALSE, joined by AND, or 1=1; a correlation filter "
        "does the same"
    )

"""Convert rules to descriptions, and back.

Source: azure-servicebus 7.15 (_utils: serialize_key_values) and @azure/service-bus 7.9
        (ruleResourceSerializer), which write and read these elements.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from xml.etree.ElementTree import Element  # the type alone  # nosec B405

from bridge.simulator.servicebus.administration.atom import (
    SCHEMA,
    attribute,
    bad,
    child,
    element,
    local,
    moment,
    text_of,
    type_of,
    written_moment,
)
from bridge.simulator.servicebus.administration.fields import (
    duration_within,
    read_flag,
    write_duration,
    write_flag,
)
from bridge.simulator.servicebus.rules.row import SYSTEM_TEXTS, to_value
from bridge.simulator.servicebus.rules.rule import (
    CorrelationFilter,
    FalseFilter,
    Filter,
    Rule,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from bridge.simulator.sql.operators import (
    LEAST_INT,
    MOST_INT,
    EvaluationError,
    SqlSyntaxError,
    Value,
)
from bridge.simulator.wire.values import Byte, Int32, Short, UByte, UShort

RULE = "RuleDescription"

_LEVEL = element("CompatibilityLevel", "20")
_PAIR = "KeyValueOfstringanyType"
_MOST_INT32 = 2**31 - 1
_SHORT = (Byte, Int32, Short, UByte, UShort)  # all of these fit into 32 bits


def read_rule(given: Element, name: str) -> Rule:
    """Return the rule of a description.

    Raises:
        AdministrationError: the description is invalid; the error says why.
    """
    admits, action = child(given, "Filter"), child(given, "Action")
    try:
        return Rule(
            name=name,
            filter=TrueFilter() if admits is None else _read_filter(admits),
            action=None if action is None else _read_action(action),
        )
    except SqlSyntaxError as error:
        raise bad(f"The rule {name!r} cannot be read: {error}.") from error


def written_rule(rule: Rule) -> list[str]:
    """Return the elements of a rule's description."""
    return [
        _written_filter(rule.filter),
        _written_action(rule.action),
        element("CreatedAt", moment(rule.created_at)),
        element("Name", rule.name),
    ]


def _read_filter(given: Element) -> Filter:
    match type_of(given):
        case "TrueFilter":
            return TrueFilter()
        case "FalseFilter":
            return FalseFilter()
        case "SqlFilter":
            expression = text_of(given, "SqlExpression")
            if expression is None:
                raise bad("A SqlFilter needs a SqlExpression.")
            return SqlFilter.of(expression, _read_pairs(given, "Parameters"))
        case "CorrelationFilter":
            return _read_correlation(given)
        case other:
            raise bad(
                f"A Filter is a SqlFilter, CorrelationFilter, TrueFilter or "
                f"FalseFilter, not {other!r}."
            )


def _read_correlation(given: Element) -> Filter:
    allowed = {*SYSTEM_TEXTS, "Properties"}
    for inner in given:
        if local(inner) not in allowed:
            raise bad(
                f"A CorrelationFilter has no {local(inner)!r}; allowed: "
                f"{', '.join(sorted(allowed))}."
            )
    texts = {
        name: text
        for name in SYSTEM_TEXTS
        if (text := text_of(given, name)) is not None
    }
    own = _read_pairs(given, "Properties")
    if not texts and not own:
        raise bad("A CorrelationFilter names at least one property.")
    return CorrelationFilter(properties=texts, application_properties=own)


def _read_action(given: Element) -> SqlAction | None:
    kind, expression = type_of(given), text_of(given, "SqlExpression")
    if kind == "EmptyRuleAction":
        return None
    if kind != "SqlRuleAction":
        raise bad(f"An Action is a SqlRuleAction or EmptyRuleAction, not {kind!r}.")
    if expression is None:
        raise bad("A SqlRuleAction needs a SqlExpression.")
    return SqlAction.of(expression, _read_pairs(given, "Parameters"))


def _read_pairs(given: Element, name: str) -> dict[str, Value]:
    pairs = child(given, name)
    found: dict[str, Value] = {}
    for pair in [] if pairs is None else pairs:
        key, value = text_of(pair, "Key"), child(pair, "Value")
        if key is None or value is None:
            raise bad(f"Each of {name} has a Key and a Value.")
        found[key] = _read_value(key, type_of(value), value.text or "")
    return found


def _read_value(key: str, kind: str, text: str) -> Value:
    reader = _READERS.get(kind)
    if reader is None:
        raise bad(
            f"The type of {key!r} is {kind!r}; allowed: {', '.join(sorted(_READERS))}."
        )
    try:
        return reader(text)
    except (ValueError, OverflowError) as error:
        raise bad(f"The value of {key!r} is not of type {kind}: {text!r}.") from error


class _Naive(datetime):
    """A time without a zone: it counts as UTC, and is written without a zone."""


def _read_int(text: str) -> Value:
    found = int(text)
    if abs(found) > _MOST_INT32 + (found < 0):
        raise ValueError("does not fit into 32 bits")
    return Int32(found)


def _read_long(text: str) -> Value:
    found = int(text)
    if not LEAST_INT <= found <= MOST_INT:
        raise ValueError("does not fit into 64 bits")
    return found


def _read_time(text: str) -> Value:
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        return _Naive.fromisoformat(text).replace(tzinfo=UTC)
    return found.astimezone(UTC)


def _read_duration(text: str) -> Value:
    return duration_within(timedelta(), timedelta(days=10_000_000))(text)


_READERS: Mapping[str, Callable[[str], Value]] = {
    "string": str,
    "int": _read_int,
    "long": _read_long,
    "double": float,
    "boolean": read_flag,
    "dateTime": _read_time,
    "duration": _read_duration,
}


def _written_filter(admits: Filter) -> str:
    if isinstance(admits, SqlFilter):
        inner = _written_sql(admits.expression, admits.parameters)
        return _typed("Filter", "SqlFilter", inner)
    if isinstance(admits, CorrelationFilter):
        texts = [
            element(name, admits.properties[name])
            for name in _CORRELATION_ORDER
            if name in admits.properties
        ]
        own = _written_pairs("Properties", admits.application_properties)
        return _typed("Filter", "CorrelationFilter", "".join(texts) + own)
    is_false = isinstance(admits, FalseFilter)
    kind, expression = ("FalseFilter", "1=0") if is_false else ("TrueFilter", "1=1")
    return _typed("Filter", kind, element("SqlExpression", expression) + _LEVEL)


# The order in which the service writes these elements.
_CORRELATION_ORDER = (
    "CorrelationId",
    "MessageId",
    "To",
    "ReplyTo",
    "Label",
    "SessionId",
    "ReplyToSessionId",
    "ContentType",
)


def _written_action(action: SqlAction | None) -> str:
    if action is None:
        return _typed("Action", "EmptyRuleAction", "")
    inner = _written_sql(action.expression, action.parameters)
    return _typed("Action", "SqlRuleAction", inner)


def _written_sql(expression: str, parameters: Mapping[str, object]) -> str:
    sql = element("SqlExpression", expression)
    return sql + _LEVEL + _written_pairs("Parameters", parameters)


def _written_pairs(name: str, pairs: Mapping[str, object]) -> str:
    # Clients would read an empty element as a list of one pair without a key.
    if not pairs:
        return ""
    inner = "".join(
        f"<{_PAIR}>{element('Key', key)}{_written_value(value)}</{_PAIR}>"
        for key, value in pairs.items()
    )
    return f"<{name}>{inner}</{name}>"


def _written_value(value: object) -> str:
    kind, text = _text(_sql_value(value))
    attributes = attribute("i:type", f"d6p1:{kind}") + attribute("xmlns:d6p1", SCHEMA)
    return element("Value", text, attributes)


def _sql_value(value: object) -> object:
    """Return a rule's value with its SQL type, e.g. an AMQP timestamp as a time.

    A number keeps its type: clients compare an int with an int, and a long with a long.
    """
    if isinstance(value, _SHORT):
        return value
    try:
        return to_value(value)
    except EvaluationError:
        return value


def _text(value: object) -> tuple[str, str]:
    match value:
        case bool():
            return "boolean", write_flag(value)
        case int():
            return ("int" if isinstance(value, _SHORT) else "long"), str(int(value))
        case float():
            return "double", repr(float(value))
        case datetime():
            return "dateTime", _written_time(value)
        case timedelta():
            return "duration", write_duration(value)
        case _:
            return "string", str(value)


def _written_time(value: datetime) -> str:
    if isinstance(value, _Naive):
        return value.replace(tzinfo=None).isoformat()
    return written_moment(value)


def _typed(name: str, kind: str, inner: str) -> str:
    return f"<{name}{attribute('i:type', kind)}>{inner}</{name}>"

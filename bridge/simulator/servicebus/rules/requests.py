"""The requests about rules on <subscription>/$management. No I/O.

Each function takes the rules and the decoded map of a request, and returns the map of
the reply.

Source: Azure Service Bus, AMQP request-response operations: rule operations. The codes
        of filters have one digit less than the other codes; clients rely on this.
"""

from collections.abc import Mapping

from bridge.simulator.servicebus.errors import Condition, RefusedError
from bridge.simulator.servicebus.rules.rule import (
    CorrelationFilter,
    FalseFilter,
    Filter,
    Rule,
    SqlAction,
    SqlFilter,
)
from bridge.simulator.servicebus.rules.ruleset import RuleSet
from bridge.simulator.servicebus.values import described
from bridge.simulator.sql.errors import SqlSyntaxError
from bridge.simulator.wire.values import Described

Body = Mapping[object, object]

MOST_NAME = 50

_DESCRIPTION = 0x13700000004
_NO_ACTION = 0x13700000005
_ACTION = 0x13700000006
_SQL = 0x1370000006
_TRUE = 0x1370000007
_FALSE = 0x1370000008
_CORRELATION = 0x1370000009
# The fields of a correlation filter in a request, in their order in a reply.
_FIELDS = {
    "correlation-id": "CorrelationId",
    "message-id": "MessageId",
    "to": "To",
    "reply-to": "ReplyTo",
    "label": "Label",
    "session-id": "SessionId",
    "reply-to-session-id": "ReplyToSessionId",
    "content-type": "ContentType",
}


def add_rule(rules: RuleSet, body: Body) -> Body:
    """Add a rule.

    Raises:
        RefusedError: the rule is invalid, or another rule has this name.
    """
    name, description = _name(body), _map(body, "rule-description")
    action = _map(description, "sql-rule-action")
    try:
        rule = Rule(
            name=name,
            filter=_filter(description),
            action=SqlAction.of(_expression(action)) if action else None,
        )
    except SqlSyntaxError as error:
        raise RefusedError(Condition.ARGUMENT_ERROR, f"rule {name}: {error}") from error
    rules.add(rule)
    return {}


def remove_rule(rules: RuleSet, body: Body) -> Body:
    """Remove a rule.

    Raises:
        RefusedError: no rule has this name.
    """
    rules.remove(_name(body))
    return {}


def list_rules(rules: RuleSet, body: Body) -> Body:
    """Return a page of the rules; an empty map if there are none.

    Raises:
        RefusedError: "skip" or "top" is not a number.
    """
    skip, top = _number(body, "skip"), _number(body, "top")
    page = list(rules)[skip : skip + top]
    if not page:
        return {}
    return {"rules": [{"rule-description": _described(rule)} for rule in page]}


def _described(rule: Rule) -> Described:
    action = rule.action
    described_action: object = (
        described(_NO_ACTION, [])
        if action is None
        else described(_ACTION, [action.expression])
    )
    admits = _described_filter(rule.filter)
    return described(_DESCRIPTION, [admits, described_action, rule.name])


def _described_filter(admits: Filter) -> Described:
    if isinstance(admits, SqlFilter):
        return described(_SQL, [admits.expression])
    if isinstance(admits, CorrelationFilter):
        texts: list[object] = [admits.properties.get(name) for name in _FIELDS.values()]
        own = dict(admits.application_properties)
        return described(_CORRELATION, [*texts, own])
    return described(_FALSE if isinstance(admits, FalseFilter) else _TRUE, [])


def _filter(description: Body) -> Filter:
    sql, correlation = (
        _map(description, "sql-filter"),
        _map(description, "correlation-filter"),
    )
    if bool(sql) == bool(correlation):
        raise RefusedError(
            Condition.ARGUMENT_ERROR,
            "a rule has either a sql-filter or a correlation-filter",
        )
    if sql:
        return SqlFilter.of(_expression(sql))
    texts = {
        name: value
        for field, name in _FIELDS.items()
        if isinstance(value := correlation.get(field), str)
    }
    own = {str(name): value for name, value in _map(correlation, "properties").items()}
    if not texts and not own:
        raise RefusedError(
            Condition.ARGUMENT_ERROR, "the correlation-filter names no property"
        )
    return CorrelationFilter(properties=texts, application_properties=own)


def _name(body: Body) -> str:
    name = body.get("rule-name")
    if not isinstance(name, str) or not 1 <= len(name) <= MOST_NAME:
        raise RefusedError(
            Condition.ARGUMENT_ERROR,
            f"rule-name is a text of 1 to {MOST_NAME} characters",
        )
    return name


def _expression(sql: Body) -> str:
    expression = sql.get("expression")
    if not isinstance(expression, str):
        raise RefusedError(Condition.ARGUMENT_ERROR, "expression is not a text")
    return expression


def _map(body: Body, name: str) -> Body:
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RefusedError(Condition.ARGUMENT_ERROR, f"{name} is not a map")
    return value


def _number(body: Body, name: str) -> int:
    value = body.get(name)
    if not isinstance(value, int) or value < 0:
        raise RefusedError(Condition.ARGUMENT_ERROR, f"{name} is not a number from 0")
    return value

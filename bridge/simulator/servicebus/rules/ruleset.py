"""The rules of one subscription, which may change while messages arrive."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from msgspec import Struct

from bridge.simulator.servicebus.message import Message
from bridge.simulator.servicebus.rules.row import Arrival, Row
from bridge.simulator.servicebus.rules.rule import (
    CorrelationFilter,
    FalseFilter,
    Filter,
    Rule,
    SqlAction,
    SqlFilter,
)
from bridge.simulator.servicebus.values import Condition, RefusedError, described
from bridge.simulator.sql.operators import EvaluationError, SqlSyntaxError
from bridge.simulator.wire.values import Described


class Admitted(Struct, frozen=True, kw_only=True):
    """The result of applying the rules of a subscription to one message.

    Attributes:
        copies: the messages for the subscription: one for all matching rules without an
            action, and one for each matching rule with an action.
        failures: why some rules could not be applied.
    """

    copies: tuple[Message, ...] = ()
    failures: tuple[str, ...] = ()


class RuleSet:
    """The rules by their names.

    Args:
        rules: the rules at the start.
        clock: returns seconds since the epoch.
    """

    def __init__(self, rules: Iterable[Rule], clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rules = dict[str, Rule]()
        for rule in rules:
            self.add(rule)

    def __iter__(self) -> Iterator[Rule]:
        return iter(tuple(self._rules.values()))

    def find(self, name: str) -> Rule:
        """Return a rule.

        Raises:
            RefusedError: no rule has this name.
        """
        found = self._rules.get(name.lower())
        if found is None:
            raise RefusedError(
                Condition.NOT_FOUND, f"the rule {name!r} could not be found"
            )
        return found

    def add(self, rule: Rule) -> None:
        """Add a rule.

        Raises:
            RefusedError: another rule has this name.
        """
        if rule.name.lower() in self._rules:
            raise RefusedError(
                Condition.ENTITY_ALREADY_EXISTS, f"the rule {rule.name!r} exists"
            )
        self._rules[rule.name.lower()] = replace(rule, created_at=self._clock())

    def change(self, rule: Rule) -> None:
        """Replace the rule of the same name.

        Raises:
            RefusedError: no rule has this name.
        """
        before = self.find(rule.name)
        self._rules[rule.name.lower()] = replace(rule, created_at=before.created_at)

    def remove(self, name: str) -> None:
        """Remove a rule.

        Raises:
            RefusedError: no rule has this name.
        """
        self.find(name)
        del self._rules[name.lower()]

    def admit(self, message: Message, arrival: Arrival) -> Admitted:
        """Apply the rules to a message; return the copies for the subscription."""
        row = Row(message, arrival)
        plain: Message | None = None
        changed, failures = list[Message](), list[str]()
        for rule in self._rules.values():
            try:
                copy = rule.copy(row)
            except EvaluationError as error:
                failures.append(f"rule {rule.name}: {error}")
                continue
            if copy is None:
                continue
            if rule.action is None:
                plain = copy
            else:
                changed.append(copy)
        copies = changed if plain is None else [plain, *changed]
        return Admitted(copies=tuple(copies), failures=tuple(failures))


# -- The requests about rules on <subscription>/$management. No I/O --------------------
#
# Each function takes the rules and the decoded map of a request, and returns the map of
# the reply.
#
# Source: Azure Service Bus, AMQP request-response operations: rule operations. The
#         codes of filters have one digit less than the others; clients rely on this.


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

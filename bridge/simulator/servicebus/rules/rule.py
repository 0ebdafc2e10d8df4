"""A rule of a subscription: a filter, and an action on the messages that it admits.

Source: Azure Service Bus, topic filters and actions.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, Self

from msgspec import Struct

from bridge.simulator.servicebus.message import Message
from bridge.simulator.servicebus.rules.row import SYSTEM, Draft, Row, to_value
from bridge.simulator.sql.operators import Value, compare
from bridge.simulator.sql.parser import Dialect, parse_action, parse_filter
from bridge.simulator.sql.tree import AllOf, Condition, Statement

DEFAULT_NAME = "$Default"
RULE_NAME = "RuleName"
_EVERYTHING = re.compile(r"\s*1\s*=\s*1\s*")


class Filter(Protocol):
    """Admits messages."""

    def matches(self, row: Row) -> bool:
        """Return whether the filter admits a message.

        Raises:
            EvaluationError: the filter cannot be applied to the message's values.
        """


class TrueFilter(Struct, frozen=True):
    """Admits every message."""

    def matches(self, row: Row) -> bool:  # noqa: ARG002 - the same for all
        """Return true."""
        return True


class FalseFilter(Struct, frozen=True):
    """Admits no message."""

    def matches(self, row: Row) -> bool:  # noqa: ARG002 - the same for all
        """Return false."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelationFilter:
    """Admits a message if every named property is equal.

    Attributes:
        properties: system properties by their names in the entity file, such as
            Label or CorrelationId.
        application_properties: the sender's own properties; the case of their names
            matters.
    """

    properties: Mapping[str, str] = field(default_factory=dict)
    application_properties: Mapping[str, object] = field(default_factory=dict)

    def matches(self, row: Row) -> bool:
        """Return whether the message has all of the properties."""
        sent = row.sent
        return all(
            sent.properties.get(name) == value
            for name, value in self.properties.items()
        ) and all(
            compare(
                "=", to_value(sent.application_properties.get(name)), to_value(value)
            )
            for name, value in self.application_properties.items()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlFilter:
    """Admits a message if a condition is true, not if it is false or unknown.

    Attributes:
        expression: the text of the condition.
        parameters: the values of its @names.
        condition: the parsed condition.
    """

    expression: str
    parameters: Mapping[str, Value] = field(default_factory=dict)
    condition: Condition = field(repr=False, compare=False)

    @classmethod
    def of(cls, expression: str, parameters: Mapping[str, Value] | None = None) -> Self:
        """Parse a filter.

        Raises:
            SqlSyntaxError: the expression is invalid; the error names the position.
        """
        given = parameters or {}
        if _EVERYTHING.fullmatch(expression):
            condition: Condition = AllOf(parts=())  # does not load the parser
        else:
            condition = parse_filter(
                expression, Dialect(system=SYSTEM, parameters=given)
            )
        return cls(expression=expression, parameters=given, condition=condition)

    def matches(self, row: Row) -> bool:
        """Return whether the condition is true."""
        return self.condition.truth(row) is True


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlAction:
    """Changes a message.

    Attributes:
        expression: the text of the statements.
        parameters: the values of its @names.
        statements: the parsed statements.
    """

    expression: str
    parameters: Mapping[str, Value] = field(default_factory=dict)
    statements: tuple[Statement, ...] = field(repr=False, compare=False)

    @classmethod
    def of(cls, expression: str, parameters: Mapping[str, Value] | None = None) -> Self:
        """Parse an action.

        Raises:
            SqlSyntaxError: the expression is invalid; the error names the position.
        """
        given = parameters or {}
        dialect = Dialect(system=SYSTEM, parameters=given)
        statements = parse_action(expression, dialect)
        return cls(expression=expression, parameters=given, statements=statements)

    def apply(self, draft: Draft) -> None:
        """Change a message.

        Raises:
            EvaluationError: a property cannot have its new value.
        """
        for statement in self.statements:
            statement.apply(draft)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule.

    Attributes:
        name: unique in its subscription; case does not matter.
        filter: which messages the rule admits.
        action: how the rule changes them; None: it does not.
        created_at: seconds since the epoch.
    """

    name: str = DEFAULT_NAME
    filter: Filter = field(default_factory=TrueFilter)
    action: SqlAction | None = None
    created_at: float = field(default=0.0, compare=False)

    def copy(self, row: Row) -> Message | None:
        """Return the message, changed by the action; None: the rule does not admit it.

        Raises:
            EvaluationError: the rule cannot be applied to the message's values.
        """
        if not self.filter.matches(row):
            return None
        if self.action is None:
            return row.sent
        draft = Draft(row.sent, row.arrival)
        self.action.apply(draft)
        draft.write("user", RULE_NAME, self.name)
        return draft.message()

"""The parts of a parsed filter or action, and how each is evaluated.

The truth of a condition is true, false, or None for unknown. The value of an expression
may be None, which is both NULL and unknown.

Source: Azure Service Bus, subscription rule SQL filter syntax: property evaluation
        semantics (the tables of AND and OR).
"""

from collections.abc import Callable, Sequence
from typing import Protocol
from uuid import UUID

from msgspec import Struct

from bridge.simulator.sql.operators import (
    EvaluationError,
    Truth,
    Value,
    calculate,
    compare,
    is_like,
    negate,
)


class Row(Protocol):
    """The properties of a message."""

    def read(self, scope: str, name: str) -> Value:
        """Return a property; None: it is absent or null.

        Raises:
            EvaluationError: there is no such system property.
        """

    def has(self, scope: str, name: str) -> bool:
        """Return whether a property exists, even if its value is null."""


class Draft(Row, Protocol):
    """The properties of a message, which an action may change."""

    def write(self, scope: str, name: str, value: Value) -> None:
        """Set a property.

        Raises:
            EvaluationError: the property cannot have this value.
        """

    def remove(self, scope: str, name: str) -> None:
        """Remove a property, if it exists."""


class Condition(Struct, frozen=True):
    """A part that is true, false or unknown."""

    def truth(self, row: Row) -> Truth:
        """Evaluate the condition."""
        raise NotImplementedError


class Expression(Struct, frozen=True):
    """A part that has a value."""

    def value(self, row: Row) -> Value:
        """Evaluate the expression."""
        raise NotImplementedError


class AllOf(Condition, frozen=True, kw_only=True):
    """Conditions joined by AND: false if one of them is false."""

    parts: Sequence[Condition]

    def truth(self, row: Row) -> Truth:
        """Evaluate the condition."""
        found: Truth = True
        for part in self.parts:
            truth = part.truth(row)
            if truth is False:
                return False
            found = found and truth
        return found


class AnyOf(Condition, frozen=True, kw_only=True):
    """Conditions joined by OR: true if one of them is true."""

    parts: Sequence[Condition]

    def truth(self, row: Row) -> Truth:
        """Evaluate the condition."""
        found: Truth = False
        for part in self.parts:
            truth = part.truth(row)
            if truth:
                return True
            found = None if truth is None else found
        return found


class Negated(Condition, frozen=True, kw_only=True):
    """NOT: an unknown condition stays unknown."""

    part: Condition

    def truth(self, row: Row) -> Truth:
        """Evaluate the condition."""
        truth = self.part.truth(row)
        return None if truth is None else not truth


class Compared(Condition, frozen=True, kw_only=True):
    """The comparison of two values."""

    sign: str
    left: Expression
    right: Expression

    def truth(self, row: Row) -> Truth:
        """Evaluate the condition."""
        return compare(self.sign, self.left.value(row), self.right.value(row))


class OneOf(Condition, frozen=True, kw_only=True):
    """IN: whether a value equals one of several values."""

    left: Expression
    among: Sequence[Expression]

    def truth(self, row: Row) -> Truth:
        """Evaluate the condition."""
        left = self.left.value(row)
        truths = [compare("=", left, each.value(row)) for each in self.among]
        return True if True in truths else (None if None in truths else False)


class Like(Condition, frozen=True, kw_only=True):
    """LIKE: whether a text matches a pattern."""

    left: Expression
    pattern: Expression
    escape: Expression | None

    def truth(self, row: Row) -> Truth:
        """Evaluate the condition."""
        escape = "" if self.escape is None else self.escape.value(row)
        return is_like(self.left.value(row), self.pattern.value(row), escape)


class Property(Expression, frozen=True, kw_only=True):
    """A property of the message.

    Attributes:
        scope: sys or user.
        name: as it is written.
    """

    scope: str
    name: str

    def value(self, row: Row) -> Value:
        """Evaluate the expression."""
        return row.read(self.scope, self.name)


class IsNull(Condition, frozen=True, kw_only=True):
    """IS NULL: whether a property is absent or null."""

    subject: Property

    def truth(self, row: Row) -> Truth:
        """Evaluate the condition."""
        return self.subject.value(row) is None


class Exists(Condition, frozen=True, kw_only=True):
    """EXISTS: whether a property exists, even if its value is null."""

    subject: Property

    def truth(self, row: Row) -> Truth:
        """Evaluate the condition."""
        return row.has(self.subject.scope, self.subject.name)


class Constant(Expression, frozen=True, kw_only=True):
    """A constant, or a parameter of the rule."""

    constant: Value

    def value(self, row: Row) -> Value:  # noqa: ARG002 - the same for all messages
        """Evaluate the expression."""
        return self.constant


class Calculated(Expression, frozen=True, kw_only=True):
    """Values joined by operators of the same precedence, evaluated from the left."""

    first: Expression
    steps: Sequence[tuple[str, Expression]]

    def value(self, row: Row) -> Value:
        """Evaluate the expression."""
        found = self.first.value(row)
        for sign, part in self.steps:
            found = calculate(sign, found, part.value(row))
        return found


class Signed(Expression, frozen=True, kw_only=True):
    """A value with a minus or plus before it."""

    sign: str
    part: Expression

    def value(self, row: Row) -> Value:
        """Evaluate the expression."""
        found = self.part.value(row)
        return negate(found) if self.sign == "-" else calculate("+", 0, found)


class Named(Expression, frozen=True, kw_only=True):
    """property(name): the property that an expression names."""

    name: Expression

    def value(self, row: Row) -> Value:
        """Evaluate the expression."""
        name = self.name.value(row)
        if name is None:
            return None
        if not isinstance(name, str):
            raise EvaluationError(f"property() takes a name, not {name!r}")
        scope, dot, rest = name.partition(".")
        if dot and scope.lower() in {"sys", "user"}:
            return row.read(scope.lower(), rest)
        return row.read("user", name)


class NewId(Expression, frozen=True, kw_only=True):
    """newid(): a new UUID each time."""

    make: Callable[[], UUID]

    def value(self, row: Row) -> Value:  # noqa: ARG002 - does not use the message
        """Evaluate the expression."""
        return self.make()


class Statement(Struct, frozen=True, kw_only=True):
    """A statement of an action."""

    subject: Property

    def apply(self, draft: Draft) -> None:
        """Change the message."""
        raise NotImplementedError


class Set(Statement, frozen=True, kw_only=True):
    """SET: sets a property to a value. An unknown value is set as null."""

    source: Expression

    def apply(self, draft: Draft) -> None:
        """Change the message."""
        draft.write(self.subject.scope, self.subject.name, self.source.value(draft))


class Remove(Statement, frozen=True, kw_only=True):
    """REMOVE: removes a property."""

    def apply(self, draft: Draft) -> None:
        """Change the message."""
        draft.remove(self.subject.scope, self.subject.name)

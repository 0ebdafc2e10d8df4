"""Convert lark's parse tree to conditions and expressions, and check their meaning.

The builder separates conditions from values, which the grammar does not. It also checks
the names of properties, parameters and functions.
"""

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING
from uuid import uuid4

from bridge.simulator.sql.operators import LEAST_INT, MOST_INT, SqlSyntaxError, Value
from bridge.simulator.sql.tree import (
    AllOf,
    AnyOf,
    Calculated,
    Compared,
    Condition,
    Constant,
    Exists,
    Expression,
    IsNull,
    Like,
    Named,
    Negated,
    NewId,
    OneOf,
    Property,
    Remove,
    Set,
    Signed,
    Statement,
)

if TYPE_CHECKING:
    from lark import Tree
    from lark.lexer import Token

# More than people need, and much less than what would overflow the stack.
MOST_DEPTH = 50
RESERVED = frozenset(
    {"AND", "OR", "NOT", "IS", "IN", "LIKE", "ESCAPE", "EXISTS", "NULL", "TRUE"}
    | {"FALSE"}
)
_SCOPES = ("sys", "user")
_FUNCTIONS = "newid(), property(name), p(name)"


class Builder:
    """Builds the conditions, expressions and statements of one filter or action.

    Args:
        readable: the names of the system properties.
        parameters: the values of the parameters, by their @names.
        writable: the names of the system properties that a statement may change.
    """

    def __init__(
        self,
        readable: Collection[str],
        parameters: Mapping[str, Value],
        writable: Collection[str] = (),
    ) -> None:
        self._readable = {name.lower(): name for name in readable}
        self._writable = {name.lower(): name for name in writable}
        self._parameters = {name.lower(): value for name, value in parameters.items()}
        self._depth = 0

    def condition(self, tree: "Tree[Token]") -> Condition:
        """Return a condition.

        Raises:
            SqlSyntaxError: the tree is a value, or a part of it is invalid.
        """
        built = self._build(tree)
        if not isinstance(built, Condition):
            raise SqlSyntaxError("a condition is expected, not a value", _at(tree))
        return built

    def statement(self, tree: "Tree[Token]") -> Statement:
        """Return a statement.

        Raises:
            SqlSyntaxError: a part of the tree is invalid.
        """
        subject = self._property(_trees(tree)[0])
        if subject.scope == "sys" and subject.name.lower() not in self._writable:
            names = ", ".join(sorted(self._writable.values()))
            raise SqlSyntaxError(
                f"sys.{subject.name} cannot be changed; allowed: {names}",
                _at(_trees(tree)[0]),
            )
        if tree.data == "remove":
            return Remove(subject=subject)
        return Set(subject=subject, source=self._expression(_trees(tree)[1]))

    def _build(self, tree: "Tree[Token]") -> Condition | Expression:
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise SqlSyntaxError(f"nested deeper than {MOST_DEPTH}", _at(tree))
        built = _BUILDERS[tree.data](self, tree)
        self._depth -= 1
        return built

    def _expression(self, tree: "Tree[Token]") -> Expression:
        built = self._build(tree)
        if not isinstance(built, Expression):
            raise SqlSyntaxError("a value is expected, not a condition", _at(tree))
        return built

    def _property(self, tree: "Tree[Token]") -> Property:
        tokens = _tokens(tree)
        scope = tokens[0].lower() if tree.data == "scoped" else "user"
        if scope not in _SCOPES:
            raise SqlSyntaxError(
                f"{str(tokens[0])!r} is no scope; allowed: sys, user", _at(tree)
            )
        name = _name(tokens[-1])
        if scope == "sys" and name.lower() not in self._readable:
            names = ", ".join(sorted(self._readable.values()))
            raise SqlSyntaxError(
                f"there is no system property {name!r}; allowed: {names}", _at(tree)
            )
        return Property(scope=scope, name=name)

    def any_of(self, tree: "Tree[Token]") -> Condition:
        """Return conditions joined by OR."""
        return AnyOf(parts=[self.condition(part) for part in _trees(tree)])

    def all_of(self, tree: "Tree[Token]") -> Condition:
        """Return conditions joined by AND."""
        return AllOf(parts=[self.condition(part) for part in _trees(tree)])

    def negated(self, tree: "Tree[Token]") -> Condition:
        """Return a condition with NOT."""
        return Negated(part=self.condition(_trees(tree)[0]))

    def compared(self, tree: "Tree[Token]") -> Condition:
        """Return a comparison."""
        left, right = (self._expression(part) for part in _trees(tree))
        return Compared(sign=str(_tokens(tree)[0]), left=left, right=right)

    def is_null(self, tree: "Tree[Token]") -> Condition:
        """Return IS NULL or IS NOT NULL."""
        (subject,) = _trees(tree)
        built = self._expression(subject)
        if not isinstance(built, Property):
            raise SqlSyntaxError("IS NULL asks about a property", _at(subject))
        return _unless_not(tree, IsNull(subject=built))

    def is_in(self, tree: "Tree[Token]") -> Condition:
        """Return IN or NOT IN."""
        left, *among = (self._expression(part) for part in _trees(tree))
        return _unless_not(tree, OneOf(left=left, among=among))

    def is_like(self, tree: "Tree[Token]") -> Condition:
        """Return LIKE or NOT LIKE."""
        left, pattern, *escapes = (self._expression(part) for part in _trees(tree))
        escape = escapes[0] if escapes else None
        if isinstance(escape, Constant) and not _is_character(escape.constant):
            raise SqlSyntaxError("ESCAPE takes one character", _at(_trees(tree)[2]))
        return _unless_not(tree, Like(left=left, pattern=pattern, escape=escape))

    def exists(self, tree: "Tree[Token]") -> Condition:
        """Return EXISTS."""
        return Exists(subject=self._property(_trees(tree)[0]))

    def calculated(self, tree: "Tree[Token]") -> Expression:
        """Return values joined by operators."""
        first, *others = (self._expression(part) for part in _trees(tree))
        signs = [str(token) for token in _tokens(tree)]
        return Calculated(first=first, steps=list(zip(signs, others, strict=True)))

    def signed(self, tree: "Tree[Token]") -> Expression:
        """Return a value with a sign."""
        sign, (part,) = str(_tokens(tree)[0]), _trees(tree)
        if sign == "-" and part.data == "whole" and int(_tokens(part)[0]) == -LEAST_INT:
            return Constant(constant=LEAST_INT)  # its digits alone exceed 64 bits
        return Signed(sign=sign, part=self._expression(part))

    def named(self, tree: "Tree[Token]") -> Expression:
        """Return a property."""
        return self._property(tree)

    def whole(self, tree: "Tree[Token]") -> Expression:
        """Return a whole number."""
        value = int(_tokens(tree)[0])
        if value > MOST_INT:
            raise SqlSyntaxError(f"{value} does not fit into 64 bits", _at(tree))
        return Constant(constant=value)

    def decimal(self, tree: "Tree[Token]") -> Expression:
        """Return a number with a point or an exponent."""
        return Constant(constant=float(_tokens(tree)[0]))

    def text(self, tree: "Tree[Token]") -> Expression:
        """Return a text."""
        return Constant(constant=_unquoted(_tokens(tree)[0], "'"))

    def parameter(self, tree: "Tree[Token]") -> Expression:
        """Return the value of a parameter."""
        name = str(_tokens(tree)[0])
        if name.lower() not in self._parameters:
            raise SqlSyntaxError(f"the parameter {name} has no value", _at(tree))
        return Constant(constant=self._parameters[name.lower()])

    def function(self, tree: "Tree[Token]") -> Expression:
        """Return a call of a function."""
        name, arguments = _tokens(tree)[0], _trees(tree)
        wanted = {"newid": 0, "property": 1, "p": 1}.get(name.lower())
        if wanted is None:
            raise SqlSyntaxError(
                f"there is no function {str(name)!r}; allowed: {_FUNCTIONS}", _at(tree)
            )
        if wanted != len(arguments):
            raise SqlSyntaxError(
                f"{name}() takes {wanted or 'no'} value{'s' if wanted > 1 else ''}, "
                f"not {len(arguments)}",
                _at(tree),
            )
        if not arguments:
            return NewId(make=uuid4)
        return Named(name=self._expression(arguments[0]))


_BUILDERS: Mapping[str, Callable[[Builder, "Tree[Token]"], Condition | Expression]] = {
    "any_of": Builder.any_of,
    "all_of": Builder.all_of,
    "negated": Builder.negated,
    "compared": Builder.compared,
    "is_null": Builder.is_null,
    "is_not_null": Builder.is_null,
    "is_in": Builder.is_in,
    "is_not_in": Builder.is_in,
    "is_like": Builder.is_like,
    "is_not_like": Builder.is_like,
    "exists": Builder.exists,
    "calculated": Builder.calculated,
    "signed": Builder.signed,
    "property": Builder.named,
    "scoped": Builder.named,
    "whole": Builder.whole,
    "decimal": Builder.decimal,
    "text": Builder.text,
    "true": lambda _builder, _tree: Constant(constant=True),
    "false": lambda _builder, _tree: Constant(constant=False),
    "null": lambda _builder, _tree: Constant(constant=None),
    "parameter": Builder.parameter,
    "function": Builder.function,
}


def _trees(tree: "Tree[Token]") -> "list[Tree[Token]]":
    return [child for child in tree.children if not isinstance(child, str | None)]


def _tokens(tree: "Tree[Token]") -> "list[Token]":
    # The other children are trees, and None for optional parts that are absent.
    return [child for child in tree.children if isinstance(child, str)]


def _at(tree: "Tree[Token]") -> int:
    return tree.meta.start_pos + 1


def _unless_not(tree: "Tree[Token]", condition: Condition) -> Condition:
    return Negated(part=condition) if "not" in tree.data else condition


def _name(token: "Token") -> str:
    if token.type == "QUOTED":
        return _unquoted(token, '"')
    if token.type == "BRACKETED":
        return token[1:-1].replace("]]", "]")
    if token.upper() in RESERVED:
        position = (token.start_pos or 0) + 1
        raise SqlSyntaxError(f"{token} is reserved: write [{token}]", position)
    return str(token)


def _unquoted(token: str, quote: str) -> str:
    return token[1:-1].replace(quote * 2, quote)


def _is_character(value: Value) -> bool:
    return isinstance(value, str) and len(value) == 1

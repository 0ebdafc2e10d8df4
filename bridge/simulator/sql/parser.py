"""Parse SQL filters and actions; each error names its position in the text.

lark is loaded when the first text is read: most brokers have no SQL rule.
"""

from collections.abc import Collection, Mapping
from functools import cache
from typing import TYPE_CHECKING, NoReturn

from msgspec import Struct, field

from bridge.simulator.sql.builder import Builder
from bridge.simulator.sql.errors import SqlSyntaxError
from bridge.simulator.sql.grammar import GRAMMAR, WORDS
from bridge.simulator.sql.operators import Value
from bridge.simulator.sql.tree import Condition, Statement

if TYPE_CHECKING:
    from lark import Lark, Tree
    from lark.lexer import Token

# The quotas of Service Bus, of a filter and of an action.
MOST_CHARACTERS = 1024
MOST_STATEMENTS = 32


class SystemProperties(Struct, frozen=True, kw_only=True):
    """The properties in the scope sys.

    Attributes:
        readable: the names of all system properties.
        writable: the names of the system properties that an action may set or remove.
    """

    readable: Collection[str]
    writable: Collection[str]


class Dialect(Struct, frozen=True, kw_only=True):
    """The names that a filter or action may use.

    Attributes:
        system: the properties in the scope sys.
        parameters: the values of the parameters, by their names with the @.
    """

    system: SystemProperties
    parameters: Mapping[str, Value] = field(default_factory=dict)


def parse_filter(text: str, dialect: Dialect) -> Condition:
    """Parse a filter.

    Raises:
        SqlSyntaxError: the text is not a valid filter; the error names the position.
    """
    tree = _parse(text, "filter")
    builder = Builder(dialect.system.readable, dialect.parameters)
    return builder.condition(_child(tree, 0))


def parse_action(text: str, dialect: Dialect) -> tuple[Statement, ...]:
    """Parse an action.

    Raises:
        SqlSyntaxError: the text is not a valid action, or has more than 32 statements.
    """
    tree = _parse(text, "action")
    if len(tree.children) > MOST_STATEMENTS:
        last = _child(tree, MOST_STATEMENTS).meta.start_pos + 1
        raise SqlSyntaxError(f"more than {MOST_STATEMENTS} statements", last)
    builder = Builder(
        dialect.system.readable, dialect.parameters, dialect.system.writable
    )
    return tuple(
        builder.statement(_child(tree, index)) for index in range(len(tree.children))
    )


def _child(tree: "Tree[Token]", index: int) -> "Tree[Token]":
    child = tree.children[index]
    assert not isinstance(child, str), "the grammar has no token here"  # noqa: S101 - for mypy  # nosec B101
    return child


@cache
def _parser() -> "Lark":
    from lark import Lark  # noqa: PLC0415  costs 75 ms

    return Lark(
        GRAMMAR,
        parser="lalr",
        start=["filter", "action"],
        maybe_placeholders=True,
        propagate_positions=True,
    )


def _parse(text: str, start: str) -> "Tree[Token]":
    from lark import UnexpectedInput  # noqa: PLC0415  costs 75 ms

    if len(text) > MOST_CHARACTERS:
        raise SqlSyntaxError(
            f"the text has {len(text)} characters, more than {MOST_CHARACTERS}",
            MOST_CHARACTERS + 1,
        )
    try:
        return _parser().parse(text, start=start)
    except UnexpectedInput as error:
        _refuse(text, error)


def _refuse(text: str, error: object) -> NoReturn:
    expected = getattr(error, "accepts", None) or getattr(error, "expected", ())
    allowed = expected or getattr(error, "allowed", None) or ()
    words = sorted({WORDS.get(name, name) for name in allowed})
    token = getattr(error, "token", None)
    is_at_end = token is not None and not token
    place = len(text) if is_at_end else getattr(error, "pos_in_stream", 0)
    found = _found(text, place)
    raise SqlSyntaxError(f"{found}; expected {_listed(words)}", place + 1) from None


def _found(text: str, place: int) -> str:
    if place >= len(text):
        return "the text ends too early"
    if text[place] in "'\"[" and text.find(_ENDS[text[place]], place + 1) < 0:
        return f"{text[place]} is never closed"
    word = text[place:].split(maxsplit=1)[0]
    return f"{word[:20]!r} is not expected"


_ENDS = {"'": "'", '"': '"', "[": "]"}


def _listed(words: list[str]) -> str:
    return ", ".join(words[:-1]) + (" or " if len(words) > 1 else "") + words[-1]

"""Parse SQL filters and actions; each error names its position in the text.

lark is loaded when the first text is read: most brokers have no SQL rule.
"""

from collections.abc import Collection, Mapping
from functools import cache
from typing import TYPE_CHECKING, NoReturn

from msgspec import Struct, field

from bridge.simulator.sql.builder import Builder
from bridge.simulator.sql.operators import SqlSyntaxError, Value
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


# -- The grammar of SQL filters and actions, for an LALR(1) parser ---------------------
#
# The grammar does not separate conditions from values, because both can begin alike:
# ``(a) = 1`` and ``(a = 1)``. builder.py separates them; its errors name the position.
#
# Source: Azure Service Bus, subscription rule SQL filter syntax, and SQL action syntax.


GRAMMAR = r"""
filter: condition
action: (statement (";" | ",")?)+

statement: SET property EQUALS sum   -> set
         | REMOVE property           -> remove

?condition: conjunction
          | conjunction (_OR conjunction)+   -> any_of
?conjunction: negation
            | negation (_AND negation)+      -> all_of
?negation: NOT negation                      -> negated
         | comparison

?comparison: sum
           | sum COMPARISON sum                    -> compared
           | sum EQUALS sum                        -> compared
           | sum IS NULL                           -> is_null
           | sum IS NOT NULL                       -> is_not_null
           | sum IN "(" sum ("," sum)* ")"         -> is_in
           | sum NOT IN "(" sum ("," sum)* ")"     -> is_not_in
           | sum LIKE sum [ESCAPE sum]             -> is_like
           | sum NOT LIKE sum [ESCAPE sum]         -> is_not_like

?sum: product
    | product (SIGN product)+     -> calculated
?product: unary
        | unary (FACTOR unary)+   -> calculated
?unary: SIGN unary                -> signed
      | atom

?atom: WHOLE       -> whole
     | DECIMAL     -> decimal
     | TEXT        -> text
     | TRUE        -> true
     | FALSE       -> false
     | NULL        -> null
     | PARAMETER   -> parameter
     | property
     | NAME "(" [condition ("," condition)*] ")"   -> function
     | EXISTS "(" property ")"                     -> exists
     | "(" condition ")"

property: name
        | name DOT name   -> scoped
?name: NAME | BRACKETED | QUOTED

_OR.2: /OR(?!\w)/i
_AND.2: /AND(?!\w)/i
NOT.2: /NOT(?!\w)/i
IS.2: /IS(?!\w)/i
IN.2: /IN(?!\w)/i
LIKE.2: /LIKE(?!\w)/i
ESCAPE.2: /ESCAPE(?!\w)/i
EXISTS.2: /EXISTS(?!\w)/i
NULL.2: /NULL(?!\w)/i
TRUE.2: /TRUE(?!\w)/i
FALSE.2: /FALSE(?!\w)/i
SET.2: /SET(?!\w)/i
REMOVE.2: /REMOVE(?!\w)/i

COMPARISON: "<>" | "!=" | "<=" | ">=" | "<" | ">"
EQUALS: "="
SIGN: "+" | "-"
FACTOR: "*" | "/" | "%"
DOT: "."
DECIMAL.3: /(?:\d+\.\d*|\.\d+)(?:e[+-]?\d+)?(?![\w.])/i | /\d+e[+-]?\d+(?![\w.])/i
WHOLE: /\d+(?![\w.])/
TEXT: /'(?:[^']|'')*'/
BRACKETED: /\[(?:[^\]]|\]\])+\]/
QUOTED: /"(?:[^"]|"")+"/
PARAMETER: /@[^\W\d_]\w*/
NAME: /[^\W\d_]\w*/

%ignore /\s+/
"""

# The names of the symbols above in errors.
WORDS = {
    "_OR": "OR",
    "_AND": "AND",
    "COMPARISON": "a comparison",
    "EQUALS": "=",
    "SIGN": "+ or -",
    "FACTOR": "*, / or %",
    "DOT": "a dot",
    "SEMICOLON": ";",
    "WHOLE": "a number",
    "DECIMAL": "a number",
    "TEXT": "a 'text'",
    "BRACKETED": "a property",
    "QUOTED": "a property",
    "NAME": "a property",
    "PARAMETER": "a @parameter",
    "LPAR": "(",
    "RPAR": ")",
    "COMMA": ",",
    "$END": "the end",
}

"""The grammar of SQL filters and actions, for an LALR(1) parser.

The grammar does not separate conditions from values, because both can begin alike:
``(a) = 1`` and ``(a = 1)``. builder.py separates them; its errors name the position.

Source: Azure Service Bus, subscription rule SQL filter syntax, and SQL action syntax.
"""

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

"""SQL filters: the cases of Microsoft's documentation, and what follows from it.

Sources: learn.microsoft.com/azure/service-bus-messaging:
         service-bus-messaging-sql-filter (D1), service-bus-filter-examples (D2),
         topic-filters (D3).
"""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from bridge.simulator.servicebus.message import Message
from bridge.simulator.servicebus.rules.rule import SqlFilter
from bridge.simulator.sql.operators import EvaluationError, Value
from bridge.simulator.wire.values import (
    Char,
    Decimal32,
    Decimal128,
    Described,
    Float32,
    Int32,
    Symbol,
    Timestamp,
)
from tests.simulator.servicebus_fixtures import START, row

CLAIM = "http://schemas.microsoft.com/xrm/2011/Claims/EntityLogicalName"
LABEL = {
    "Label": "omnibus",
    "MessageId": "m1",
    "CorrelationId": "abc-1",
    "To": "Store5",
}
OWN = {
    "color": "red",
    "quantity": Int32(10),
    "price": 2.5,
    "urgent": True,
    "nothing": None,
    "StoreId": "Store1",
    "tag": "topic",
    "HR-EmployeeID": 7,
    "Property With Space": "x",
    "a]b": 1,
    'say "hi"': 2,
    CLAIM: "account",
    "percent": "ABC%",
    "letters": "ABCD",
    "SuperHero": "SuperMan II",
    "größe": 3,
    "sent": Timestamp(1_700_000_000_000),
    "got": Timestamp(1_700_000_060_000),
    "took": Described(Symbol("com.microsoft:timespan"), 600_000_000),
    "guid": UUID(int=1),
    "blob": b"x",
    "long": 2**63 - 1,
    "least": -(2**63),
    "single": Float32(0.5),
    "sign": Char("c"),
}
MESSAGE = Message(
    message_id="m1",
    content=b"x" * 10,
    properties=LABEL,
    application_properties=OWN,
    time_to_live=60.0,
    annotations={Symbol("x-opt-partition-key"): "p1"},
)


def admits(expression: str, **parameters: Value) -> bool:
    given = {f"@{name}": value for name, value in parameters.items()}
    return SqlFilter.of(expression, given).matches(row(MESSAGE))


@pytest.mark.parametrize(
    ("expression", "admitted"),
    [
        # D1: patterns, delimited and quoted identifiers, IN.
        ("sys.Label LIKE '%bus%'", True),
        (r"percent LIKE 'ABC\%' ESCAPE '\'", True),
        (r"letters LIKE 'ABC\%' ESCAPE '\'", False),
        ("sys.Label LIKE '%bus%' OR user.tag IN ('queue', 'topic', 'x')", True),
        ("StoreId IN('Store1', 'Store2', 'Store3')", True),
        ("sys.To IN ('Store5','Store6','Store7') OR StoreId = 'Store8'", True),
        ("sys.To NOT IN ('Store1','Store5') OR StoreId NOT IN ('Store1')", False),
        ("[Property With Space] = 'x'", True),
        ("[HR-EmployeeID] = 7", True),
        ("[a]]b] = 1", True),
        ('"say ""hi""" = 2', True),
        ("größe = 3", True),
        # D2: system and user properties, special characters, numbers.
        ("sys.label LIKE '%bus%'", True),
        ("sys.messageid = 'm1'", True),
        ("sys.correlationid like 'abc-%'", True),
        ("user.SuperHero like 'SuperMan%'", True),
        (f"\"{CLAIM}\" = 'account'", True),
        ("quantity > 1", True),
        ("price > 2.08", True),
        ("quantity = 10 AND price = 3", False),
        ("quantity = 1 OR price = 2.5", True),
        # D3: colours and sizes; the equivalent of the true filter and of the false.
        ("color='red' AND quantity=10", True),
        ("color='blue' AND quantity=10", False),
        ("user.color='red'", True),
        ("1=1", True),
        ("1=0", False),
        # Names of properties are compared without regard to case; texts with.
        ("COLOR = 'red'", True),
        ("color = 'Red'", False),
        ("color LIKE 'R%'", False),
        ("SYS . To = 'Store5'", True),
        ("sys.Subject = 'omnibus'", True),
        # Comparisons.
        ("quantity >= 10 AND quantity <= 10 AND quantity < 11", True),
        ("quantity <> 10 OR quantity != 10", False),
        ("price = 2.5E0 AND price = 25e-1 AND price > .5 AND price < 3.", True),
        ("color > 'blue' AND color < 'redder'", True),
        ("urgent = TRUE AND urgent <> false", True),
        ("urgent = 1", False),
        ("quantity = '10'", False),
        ("quantity <> '10'", True),
        ("guid = guid AND blob = blob", True),
        ("single = 0.5 AND sign = 'c'", True),
        # Arithmetic as in C#, with its ranks.
        ("quantity / 3 = 3 AND quantity % 3 = 1", True),
        ("-quantity / 3 = -3 AND -quantity % 3 = -1", True),
        ("quantity / 4.0 = 2.5 AND 7.5 % 2 = 1.5", True),
        ("2 + 3 * 4 = 14 AND (2 + 3) * 4 = 20 AND 10 - 4 - 3 = 3", True),
        ("+quantity - -1 = 11", True),
        ("color + '!' = 'red!'", True),
        ("1 / 0.0 > 1E300 AND -1 / 0.0 < 0 AND NOT 0.0 / 0 = 0", True),
        ("NOT 5.0 % 0 = 0", True),
        ("got - sent = took AND sent + took = got AND got - took = sent", True),
        ("took + took > took AND -took < took - took", True),
        # Ranks: NOT before AND before OR.
        ("1=1 OR 1=0 AND 1=0", True),
        ("(1=1 OR 1=0) AND 1=0", False),
        ("NOT 1=0 AND 1=1", True),
        ("NOT (1=0 OR 1=1)", False),
        ("NOT NOT 1=1", True),
        ("(quantity) = (10) and ((color)) like ('r' + '%')", True),
        # LIKE.
        ("letters LIKE 'A__D'", True),
        ("letters LIKE 'A_D'", False),
        ("least = -9223372036854775808 AND least < 0", True),
        ("least = - 9223372036854775808 AND long > -9223372036854775808", True),
        ("letters LIKE '%%A%B%%D%'", True),
        ("letters LIKE ''", False),
        ("letters NOT LIKE 'a%'", True),
        ("letters LIKE 'A!BCD' ESCAPE '!'", True),
        ("letters LIKE 'ABCD!' ESCAPE '!'", False),
        ("'a_b' LIKE 'a!_b' ESCAPE '!'", True),
        ("'it''s' LIKE 'it''_'", True),
        # Null, absence and existence.
        ("nothing IS NULL AND missing IS NULL AND color IS NOT NULL", True),
        ("EXISTS(nothing) AND EXISTS ( user.color ) AND NOT EXISTS(missing)", True),
        ("sys.ReplyTo IS NULL AND NOT EXISTS(sys.ReplyTo) AND EXISTS(sys.To)", True),
        # Functions.
        ("property('color') = 'red' AND p('user.COLOR') = 'red'", True),
        ("p('sys.' + 'Label') = 'omnibus'", True),
        ("p('missing') IN (1)", False),
        ("newid() <> newid()", True),
        # System properties of other types.
        ("sys.Size = 10 AND sys.DeliveryCount = 0 AND sys.PartitionKey = 'p1'", True),
        ("sys.SequenceNumber = 7 AND sys.EnqueuedSequenceNumber = 7", True),
        ("sys.ExpiresAtUtc - sys.EnqueuedTimeUtc = sys.TimeToLive", True),
        ("sys.ScheduledEnqueueTimeUtc IS NULL AND sys.DeadLetterSource IS NULL", True),
        ("sys.ViaPartitionKey IS NULL AND sys.ContentType IS NULL", True),
    ],
)
def test_case(expression: str, admitted: bool) -> None:  # noqa: FBT001  # by name
    assert admits(expression) is admitted


TRUE, FALSE, UNKNOWN = "1=1", "1=0", "missing = 1"


def truth(expression: str) -> str:
    """Return T, F or U: only of what is unknown, the opposite is no more true."""
    if admits(expression):
        return "T"
    return "F" if admits(f"NOT ({expression})") else "U"


def test_and_has_the_table_of_the_documentation() -> None:
    table = {
        (left, right): truth(f"{left} AND {right}")
        for left in (TRUE, FALSE, UNKNOWN)
        for right in (TRUE, FALSE, UNKNOWN)
    }

    assert "".join(table.values()) == "TFU" + "FFF" + "UFU"


def test_or_has_the_table_of_the_documentation() -> None:
    table = {
        (left, right): truth(f"{left} OR {right}")
        for left in (TRUE, FALSE, UNKNOWN)
        for right in (TRUE, FALSE, UNKNOWN)
    }

    assert "".join(table.values()) == "TTT" + "TFU" + "TUU"


@pytest.mark.parametrize(
    "expression",
    [
        "missing = 1",
        "missing <> 1",
        "1 < missing",
        "missing + 1 = 2",
        "1 - missing = 2",
        "-missing = 1",
        "+missing = 1",
        "missing LIKE 'x'",
        "'x' LIKE missing",
        "'x' NOT LIKE 'y' ESCAPE missing",
        "missing IN (1)",
        "missing NOT IN (1)",
        "1 IN (missing)",
        "nothing = NULL",
        "color = NULL",
        "p(missing) = 1",
        "sys.ReplyTo = 'x'",
    ],
)
def test_what_is_unknown_makes_it_unknown(expression: str) -> None:
    """D1, property evaluation semantics: unknown, and so is its opposite."""
    assert truth(expression) == "U"


def test_one_equal_value_is_enough_beside_an_unknown_one() -> None:
    assert truth("1 IN (missing, 1)") == "T"


def test_parameters_have_types() -> None:
    """D2: DateTimeMp < @dtParam, (DateTimeMp2-DateTimeMp1) <= @timespan."""
    noon = datetime.fromtimestamp(START + 30, UTC)
    minute = timedelta(minutes=1)

    assert admits("sent < @dtParam AND got > @dtParam", dtParam=noon)
    assert admits("(got-sent) <= @timespan", timespan=minute)
    assert admits("got-sent <= @TIMESPAN", timespan=minute)
    assert admits(
        "color = @c AND quantity > @q AND urgent = @u", c="red", q=9.5, u=True
    )
    assert truth("1=1") == "T"
    assert not admits("color = @nothing OR color <> @nothing", nothing=None)


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("quantity < 'x'", "a number < a text has no answer"),
        ("urgent > FALSE", "a boolean > a boolean has no answer"),
        ("guid < guid", "a UUID < a UUID has no answer"),
        ("quantity + color = 1", "a number + a text has no value"),
        ("color * 2 = 1", "a text * a number has no value"),
        ("-color = 1", "a number - a text has no value"),
        ("urgent + 1 = 2", "a boolean + a number has no value"),
        ("quantity / 0 = 1", "10 / 0: division by zero"),
        ("long + 1 > 0", "does not fit into 64 bits"),
        ("sent + sent = sent", "a time + a time has no value"),
        ("quantity LIKE '1%'", "LIKE compares texts, not a number and a text"),
        ("color LIKE 'r' ESCAPE letters", "ESCAPE takes one character, not 'ABCD'"),
        ("p(quantity) = 1", "property() takes a name, not 10"),
        ("p('sys.Colour') = 1", "there is no system property 'Colour'"),
    ],
)
def test_values_that_do_not_fit_are_an_error_of_evaluation(
    expression: str, words: str
) -> None:
    with pytest.raises(EvaluationError) as error:
        admits(expression)

    assert words in str(error.value)


def test_what_decides_first_spares_the_rest() -> None:
    assert not admits("1=0 AND quantity < 'x'")
    assert admits("1=1 OR quantity < 'x'")


def test_pattern_that_a_regular_expression_would_never_finish_is_quick() -> None:
    text = "a" * 60_000
    sent = Message(message_id="m", application_properties={"long": text})
    pattern = "%a" * 400 + "%b"

    assert not SqlFilter.of(f"long LIKE '{pattern}'").matches(row(sent))


def test_property_without_a_form_in_sql_exists_and_equals_nothing() -> None:
    sent = Message(
        message_id="m",
        application_properties={
            "money": Decimal128(bytes(16)),
            "small": Decimal32(bytes(4)),
            "odd": Described(Symbol("other:type"), 5),
            "word": Described(Symbol("com.microsoft:timespan"), "soon"),
        },
    )

    for name in ("money", "small", "odd", "word"):
        found = SqlFilter.of(f"EXISTS({name}) AND {name} IS NOT NULL AND {name} <> 5")
        assert found.matches(row(sent))


def test_types_of_the_net_client_are_understood() -> None:
    """It sends them as described types: a time with an offset, and a URI."""
    ticks = 621_355_968_000_000_000 + int(START) * 10_000_000
    offset = Described(Symbol("com.microsoft:datetime-offset"), ticks)
    uri = Described(Symbol("com.microsoft:uri"), "sb://x")
    sent = Message(message_id="m", application_properties={"at": offset, "where": uri})

    assert SqlFilter.of("at = sys.EnqueuedTimeUtc AND where = 'sb://x'").matches(
        row(sent)
    )


@pytest.mark.parametrize("lives", [9.2e11, 1e18])
def test_message_that_lives_for_ever_expires_at_the_latest_time(lives: float) -> None:
    """As in .NET, whose longest duration stands for "for ever"."""
    sent = Message(message_id="m", time_to_live=lives)
    latest = datetime.max.replace(tzinfo=UTC)

    assert SqlFilter.of("sys.ExpiresAtUtc = @latest", {"@latest": latest}).matches(
        row(sent)
    )

"""What is no SQL filter or action: each fault has its place, and what is allowed."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.simulator.servicebus.rules.rule import SqlAction, SqlFilter
from bridge.simulator.sql.operators import SqlSyntaxError


@pytest.mark.parametrize(
    ("expression", "position", "words"),
    [
        ("", 1, "the text ends too early; expected "),
        ("colour", 1, "a condition is expected, not a value"),
        ("colour =", 9, "the text ends too early; expected "),
        ("colour == 'x'", 9, "'=' is not expected; expected "),
        ("a = 'x", 5, "' is never closed"),
        ("[a = 1", 1, "[ is never closed"),
        ('"a = 1', 1, '" is never closed'),
        ("1 = 1 1", 7, "'1' is not expected"),
        ("(1 = 1", 7, "the text ends too early; expected "),
        ("1 = 1)", 6, "')' is not expected; expected "),
        ("1 = 1 = 1", 7, "'=' is not expected"),
        ("AND a = 1", 5, "'a' is not expected"),
        ("like = 1", 1, "like is reserved: write [like]"),
        ("_a = 1", 1, "'_a' is not expected"),
        ("a = 12x", 5, "'12x' is not expected"),
        ("a = 9223372036854775808", 5, "does not fit into 64 bits"),
        ("a = -9223372036854775809", 6, "does not fit into 64 bits"),
        ("a = 1-9223372036854775808", 7, "does not fit into 64 bits"),
        ("NOT a", 5, "a condition is expected, not a value"),
        ("(a = 1) = 1", 2, "a value is expected, not a condition"),
        ("a = 1 AND b", 11, "a condition is expected, not a value"),
        ("a + 1 IS NULL", 1, "IS NULL asks about a property"),
        ("EXISTS(1)", 8, "'1)' is not expected"),
        ("a LIKE 'x' ESCAPE 'ab'", 19, "ESCAPE takes one character"),
        ("a IN ()", 7, "')' is not expected"),
        ("other.a = 1", 1, "'other' is no scope; allowed: sys, user"),
        ("sys.Colour = 1", 1, "there is no system property 'Colour'; allowed: Cont"),
        ("1 = 1 AND sys.Body = 1", 11, "there is no system property 'Body'"),
        ("a = @x", 5, "the parameter @x has no value"),
        (
            "a = lower(b)",
            5,
            "there is no function 'lower'; allowed: newid(), property(name), p(name)",
        ),
        ("a = newid(1)", 5, "newid() takes no value, not 1"),
        ("a = p()", 5, "p() takes 1 value, not 0"),
        ("a = p('x', 'y')", 5, "p() takes 1 value, not 2"),
        ("SET a = 1", 5, "'a' is not expected"),
        ("a = 1;", 6, "';' is not expected"),
        ("NOT " * 60 + "1=1", 201, "nested deeper than 50"),
        ("a = " + "-" * 900 + "1", 54, "nested deeper than 50"),
        ("a = '" + "x" * 1024, 1025, "has 1029 characters, more than 1024"),
    ],
)
def test_filter_is_refused_with_its_place(
    expression: str, position: int, words: str
) -> None:
    with pytest.raises(SqlSyntaxError) as error:
        SqlFilter.of(expression)

    assert words in error.value.what
    assert error.value.position == position
    assert str(error.value).endswith(f", at character {position}")


@pytest.mark.parametrize(
    ("expression", "position", "words"),
    [
        ("", 1, "the text ends too early; expected REMOVE or SET"),
        ("a = 1", 1, "'a' is not expected; expected REMOVE or SET"),
        ("SET a", 6, "the text ends too early; expected ="),
        ("SET a = b = 1", 11, "'=' is not expected"),
        ("SET a = (b = 1)", 10, "a value is expected, not a condition"),
        ("SET a = NOT b", 13, "'b' is not expected"),
        ("REMOVE", 7, "the text ends too early"),
        ("REMOVE 'a'", 8, "is not expected"),
        ("SET sys.Size = 1", 5, "sys.Size cannot be changed; allowed: ContentType, "),
        ("REMOVE sys.SequenceNumber", 8, "sys.SequenceNumber cannot be changed"),
        ("SET sys.Colour = 1", 5, "there is no system property 'Colour'"),
        ("SET a=1;" * 33, 257, "more than 32 statements"),
        ("SET a = 1;; SET b = 2", 11, "';' is not expected"),
    ],
)
def test_action_is_refused_with_its_place(
    expression: str, position: int, words: str
) -> None:
    with pytest.raises(SqlSyntaxError) as error:
        SqlAction.of(expression)

    assert (error.value.position, words in error.value.what) == (position, True), error


def test_long_chains_are_not_deep() -> None:
    chain = " or ".join(["a=1"] * 145)

    assert SqlFilter.of(chain).expression == chain
    assert SqlFilter.of("1" + "+1" * 500 + "=1").parameters == {}


_WORDS = ["a", "sys.To", "(", ")", "=", "<", "'x'", "1", "2.5", "AND", "OR", "NOT"]
_WORDS += ["IN", ",", "LIKE", "ESCAPE", "IS", "NULL", "EXISTS", "+", "-", "%", "@p"]


def place_of_fault(read: Callable[[str], object], text: str) -> int | None:
    """Return where a text is wrong; None: nowhere."""
    try:
        read(text)
    except SqlSyntaxError as error:
        return error.position
    return None


@given(st.lists(st.sampled_from(_WORDS), max_size=20).map(" ".join))
def test_any_words_are_a_filter_or_refused_with_a_place_in_the_text(text: str) -> None:
    place = place_of_fault(SqlFilter.of, text)

    assert place is None or 1 <= place <= len(text) + 1


@given(st.text(max_size=60), st.sampled_from([SqlFilter.of, SqlAction.of]))
def test_any_text_is_read_or_refused(text: str, read: Callable[[str], object]) -> None:
    place = place_of_fault(read, text)

    assert place is None or 1 <= place <= len(text) + 1

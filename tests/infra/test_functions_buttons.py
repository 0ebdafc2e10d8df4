"""The value of a button: nobody without the secret can make one."""

import hmac
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from approver.buttons import MOST_CHARACTERS, Button, read, write
from approver.errors import UnreadableError
from approver.vote_rules import digest
from tests.support.builders import EVENT_ID, imds_event

SECRET, OLD = "s" * 32, "o" * 32
BUTTON = Button(
    action="approve",
    event_id="C7061BAC-AFDC-4513-B24B-AA5F13A16123",
    digest="0123456789abcdef0123456789abcdef",
    reply_to="vm-approvals-sessions",
    session="group-7",
)
VECTOR = (
    "2b13d0097cabfa4b5a8d04602e0aef5785c876ac626b46fbc7bac254563d5522"
    '.{"action":"approve","digest":"0123456789abcdef0123456789abcdef",'
    '"eventId":"C7061BAC-AFDC-4513-B24B-AA5F13A16123",'
    '"replyTo":"vm-approvals-sessions","session":"group-7"}'
)


def test_form_is_that_of_the_vector() -> None:
    assert write(BUTTON, SECRET) == VECTOR


@given(
    st.builds(
        Button,
        action=st.sampled_from(["approve", "refuse"]),
        event_id=st.text(min_size=1, max_size=40),
        digest=st.text("0123456789abcdef", min_size=32, max_size=32),
        reply_to=st.text("abc/-$", min_size=1, max_size=50),
        session=st.none() | st.text(max_size=50),
    )
)
def test_what_is_written_is_read(button: Button) -> None:
    try:
        value = write(button, SECRET)
    except ValueError:  # escaped, odd text takes six times its room and more
        return
    assert len(value) <= MOST_CHARACTERS
    assert read(value, [SECRET]) == button
    assert read(value, ["new" * 16, SECRET]) == button


@given(st.text() | st.integers(0, len(VECTOR) - 1).map(lambda i: VECTOR[:i]))
def test_nothing_else_is_read(value: str) -> None:
    with pytest.raises(UnreadableError):
        read(value, [SECRET])


@pytest.mark.parametrize(
    "members",
    [
        {"action": "start"},
        {"session": 7},
        {"eventId": ""},
        {"eventId": None},
        {"replyTo": ["a"]},
        {"more": "x"},
    ],
)
def test_signed_value_of_another_form_is_refused(members: dict[str, object]) -> None:
    text = json.dumps({**json.loads(VECTOR.partition(".")[2]), **members})
    with pytest.raises(UnreadableError):
        read(signed(text), [SECRET])


@pytest.mark.parametrize("text", ["{", "[]", "7", "", "[" * 1900])
def test_signed_text_that_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(UnreadableError):
        read(signed(text), [SECRET])


def signed(text: str) -> str:
    """Return a text as somebody with the secret would sign it."""
    mac = hmac.new(SECRET.encode(), b"sebridge-button-v1:" + text.encode(), "sha256")
    return f"{mac.hexdigest()}.{text}"


def test_other_secret_is_refused() -> None:
    with pytest.raises(UnreadableError):
        read(write(BUTTON, OLD), [SECRET])


def test_too_long_value_is_not_written() -> None:
    long = Button(
        action="refuse", event_id="E" * 2000, digest="d", reply_to="q", session=None
    )
    with pytest.raises(ValueError, match="2000"):
        write(long, SECRET)


def test_digest_is_of_what_is_agreed_to() -> None:
    event = imds_event()
    same = imds_event(
        EventStatus="Started",
        Description="Other words.",
        Resources=["WestNO_1", "WestNO_0"],
    )

    assert digest(same) == digest(event) == "6e2067134598d1209dd53ac7b1c689ce"


@pytest.mark.parametrize(
    "change",
    [
        {"EventType": "Reboot"},
        {"Resources": ["WestNO_0"]},
        {"Resources": None},
        {"NotBefore": ""},
        {"DurationInSeconds": 6},
        {"EventSource": "User"},
    ],
)
def test_digest_tells_a_changed_event(change: dict[str, object]) -> None:
    assert digest(imds_event(EVENT_ID, **change)) != digest(imds_event())

"""Whatever may be sent to the approval entity, and what is read of it."""

import base64
import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.approvals.message import Approval, parse
from bridge.foundation.errors import MalformedApprovalError

BODY = {"StartRequests": [{"EventId": "A"}, {"EventId": "b", "more": 1}]}
DATA = {
    **BODY,
    "approvedBy": "ada",
    "reason": "night shift",
    "expiresAt": "2026-03-02T12:00:00+01:00",
    "approvedEvent": {"EventId": "A"},
}
EVENT = {
    "specversion": "1.0",
    "id": "1",
    "source": "s",
    "type": "sebridge.startrequest.v1",
}
AT = datetime(2026, 3, 2, 11, 0, tzinfo=UTC)


def read(body: object, **properties: object) -> Approval:
    encoded = body if isinstance(body, bytes) else json.dumps(body).encode()
    return parse(encoded, properties, prefix="sebridge")


def test_plain_body_takes_claims_from_the_properties() -> None:
    found = read(
        {**BODY, "other": True},
        approvedBy="ada",
        reason="night",
        expiresAt="2026-03-02T11:00:00Z",
    )

    assert found.event_ids == ("A", "b")
    assert (found.approved_by, found.reason) == ("ada", "night")
    assert found.expires_at == AT


@pytest.mark.parametrize("at", [1772449200000, datetime(2026, 3, 2, 11, 0)])  # noqa: DTZ001 - as the SDK hands it over
def test_expiry_may_be_an_amqp_timestamp(at: object) -> None:
    assert read(BODY, expiresAt=at).expires_at == AT


def test_structured_event_takes_everything_from_its_data() -> None:
    found = read({**EVENT, "data": DATA})

    assert found.event_ids == ("A", "b")
    assert (found.approved_by, found.reason) == ("ada", "night shift")
    assert found.expires_at == AT
    assert found.approved_event == {"EventId": "A"}


def test_structured_event_may_hold_its_data_in_base64() -> None:
    encoded = base64.b64encode(json.dumps(DATA).encode()).decode()

    assert read({**EVENT, "data_base64": encoded}).approved_by == "ada"


@pytest.mark.parametrize("prefix", ["cloudEvents_", "cloudEvents:"])
def test_binary_event_is_known_by_its_properties(prefix: str) -> None:
    properties = {prefix + name: value for name, value in EVENT.items()}

    assert read(DATA, **properties).approved_by == "ada"


@pytest.mark.parametrize("prefix", ["cloudEvents_", "cloudEvents:"])
@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("type", "contoso.startrequest.v1"),
        ("type", "sebridge.startrequest.v2"),
        ("type", "sebridge.startrequest.relayed.v1"),
        ("type", None),
        ("specversion", "0.3"),
    ],
)
def test_binary_event_of_a_foreign_type_is_refused(
    prefix: str, attribute: str, value: object
) -> None:
    attributes = {**EVENT, attribute: value}
    properties = {prefix + name: one for name, one in attributes.items()}

    with pytest.raises(
        MalformedApprovalError, match=f"the CloudEvent is not of {attribute}"
    ):
        read(DATA, **properties)


@pytest.mark.parametrize(
    "body",
    [
        b"\xef\xbb\xbf" + json.dumps(BODY).encode(),
        json.dumps(json.dumps(BODY)).encode(),
    ],
)
def test_body_may_have_a_mark_or_be_a_text_that_holds_it(body: bytes) -> None:
    assert read(body).event_ids == ("A", "b")


def test_claims_of_another_type_are_none() -> None:
    found = read({**EVENT, "data": {**BODY, "approvedBy": 5, "reason": ""}})

    assert found.approved_by is None
    assert found.reason is None


def test_long_claims_are_cut() -> None:
    found = read(BODY, approvedBy="x" * 1000, reason="y" * 10_000)

    assert len(found.approved_by or "") == 256
    assert len(found.reason or "") == 2048


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"StartRequests": {}},
        {"StartRequests": ["A"]},
        {"StartRequests": [{"EventId": " "}]},
        {"StartRequests": [{"EventId": "x" * 1025}]},
        {**BODY, "expiresAt": "tomorrow"},
        {**BODY, "expiresAt": "2026-02-30T00:00:00Z"},
        {**BODY, "expiresAt": True},
        {**BODY, "approvedEvent": []},
    ],
)
def test_data_that_is_no_approval_is_refused(data: object) -> None:
    with pytest.raises(MalformedApprovalError):
        read({**EVENT, "data": data})


@pytest.mark.parametrize(
    "event",
    [
        {**EVENT, "specversion": "0.3", "data": BODY},
        {**EVENT, "type": "sebridge.startrequest.v2", "data": BODY},
        {**EVENT, "type": "other.startrequest.v1", "data": BODY},
        {**EVENT, "data_base64": "not base64!"},
        {**EVENT, "data_base64": "QUJD"},
        {**EVENT, "data_base64": 5},
        {**EVENT, "data_base64": "e30=", "data": BODY},
        {"type": "sebridge.startrequest.v1"},
    ],
)
def test_event_of_another_kind_is_refused(event: object) -> None:
    with pytest.raises(MalformedApprovalError):
        read(event)


@pytest.mark.parametrize("prefix", ["cloudEvents_", "cloudEvents:"])
@pytest.mark.parametrize(
    "changes",
    [
        {"type": "sebridge.scheduledevent.scheduled.v1"},
        {"type": "sebridge.startrequest.relayed.v1"},
        {"type": "other.startrequest.v1"},
        {"type": None},
        {"specversion": "0.3"},
        {"specversion": None},
    ],
)
def test_binary_event_of_another_kind_is_refused(
    prefix: str, changes: dict[str, object]
) -> None:
    """Its body alone would be an approval."""
    attributes = {**EVENT, **changes}
    properties = {
        prefix + name: value for name, value in attributes.items() if value is not None
    }

    with pytest.raises(MalformedApprovalError, match="the CloudEvent is not of"):
        read(DATA, **properties)


def test_expiry_beyond_the_calendar_is_refused() -> None:
    with pytest.raises(MalformedApprovalError):
        read(BODY, expiresAt=10**30)


def test_refusal_repeats_nothing_of_the_message() -> None:
    with pytest.raises(MalformedApprovalError) as found:
        read({**EVENT, "data": {"StartRequests": [{"EventId": 5}], "x": "hush"}})

    assert "hush" not in str(found.value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from([*EVENT, *DATA, "EventId", "data"]) | st.text(), inner
        )
    ),
    max_leaves=20,
)


@given(
    body=st.binary() | json_values.map(lambda v: json.dumps(v).encode()),
    properties=st.dictionaries(
        st.sampled_from(["approvedBy", "expiresAt", "cloudEvents_type", "reason"]),
        st.text() | st.integers() | st.none() | st.datetimes(),
    ),
)
def test_any_message_is_an_approval_or_that_one_error(
    body: bytes, properties: dict[str, object]
) -> None:
    try:
        found = parse(body, properties, prefix="sebridge")
    except MalformedApprovalError:
        return
    assert 1 <= len(found.event_ids) <= 100
    assert len({event_id.upper() for event_id in found.event_ids}) == len(
        found.event_ids
    )

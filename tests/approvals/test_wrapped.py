"""Bodies in the shapes that senders wrap them: read, or refused with the reason."""

import base64
import gzip
import json
from contextlib import suppress
from html import escape
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.approvals.message import parse
from bridge.foundation.errors import MalformedApprovalError
from tests.approvals.approval_world import message, world_of
from tests.support.builders import EVENT_ID, imds_event

NAMESPACE = "http://schemas.microsoft.com/2003/10/Serialization/"
HEAD = b"@\x06string\x083" + NAMESPACE.encode()
APPROVAL = {"StartRequests": [{"EventId": EVENT_ID}], "reason": "größer & <schön>"}
TEXT = json.dumps(APPROVAL, ensure_ascii=False)
EVENT = {
    "specversion": "1.0",
    "id": "1",
    "source": "/ops",
    "type": "sebridge.startrequest.v1",
    "data": APPROVAL,
}


def binary(text: bytes, chunk: int = 0) -> bytes:
    """Write a string as DataContractSerializer does: records of MC-NBFX."""
    size = 1 if len(text) < 0x100 else 2
    kind = {1: 0x99, 2: 0x9B}[size]
    first = b""
    if chunk:  # a text may be in several records
        part, text = text[:chunk], text[chunk:]
        first = bytes([0x98, len(part)]) + part
    return HEAD + first + bytes([kind]) + len(text).to_bytes(size, "little") + text


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


WRAPPED = {
    "pipelines": binary(TEXT.encode()),
    "pipelines, long": binary(json.dumps({**APPROVAL, "note": "x" * 400}).encode()),
    "pipelines, in parts": binary(TEXT.encode(), 20),
    "pipelines, an event": binary(json.dumps(EVENT).encode()),
    "element ends by itself": HEAD
    + b"\x98\x36"
    + json.dumps({"StartRequests": [{"EventId": "E-1"}]}).encode().ljust(0x36)
    + b"\x01",
    "xml": f'<string xmlns="{NAMESPACE}">{escape(TEXT)}</string>'.encode(),
    "logic apps, encoded twice": encoded(TEXT).encode(),
    "logic apps, as JSON text": json.dumps(encoded(TEXT)).encode(),
    "logic apps, a message": json.dumps(
        {"ContentData": encoded(TEXT), "ContentType": "application/json"}
    ).encode(),
    "logic apps, text": json.dumps({"contentData": TEXT}).encode(),
    "logic apps, $content": json.dumps(
        {"$content-type": "application/json", "$content": encoded(TEXT)}
    ).encode(),
    "both": binary(encoded(TEXT).encode()),
}


@pytest.mark.parametrize("body", WRAPPED.values(), ids=WRAPPED)
def test_wrapped_body_is_read(body: bytes) -> None:
    found = parse(body, {}, prefix="sebridge")

    assert found.event_ids in {(EVENT_ID,), ("E-1",)}
    assert found.reason in {APPROVAL["reason"], None}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "the body is no JSON: it is empty"),
        (TEXT.encode("utf-16"), "UTF-16"),
        (TEXT.encode("utf-16-le"), "UTF-16"),
        (TEXT.encode("latin-1"), "it is not UTF-8"),
        (gzip.compress(TEXT.encode()), "it is compressed"),
        (b"<StartRequests/>", "it is XML"),
        (binary(TEXT.encode())[:-3], "DataContractSerializer"),
        (HEAD + b"\xb7\x02{\0", "DataContractSerializer"),
        (b"approve", "the body is no JSON$"),
        (
            json.dumps({"contentData": encoded(TEXT), "ttl": "5m"}).encode(),
            "ttl has no",
        ),
        (b'{"contentData": "e30=", "ContentData": "e31="}', "given twice"),
        (json.dumps({"contentData": 5}).encode(), "has no StartRequests"),
    ],
)
def test_dead_letter_says_why_a_body_cannot_be_read(body: bytes, words: str) -> None:
    with pytest.raises(MalformedApprovalError, match=words):
        parse(body, {}, prefix="sebridge")


def test_wrappings_have_an_end() -> None:
    many = TEXT
    for _ in range(5):
        many = json.dumps({"contentData": many})
    with pytest.raises(MalformedApprovalError, match="has no StartRequests"):
        parse(many.encode(), {}, prefix="sebridge")


@given(st.binary(max_size=200) | st.binary(max_size=80).map(lambda one: HEAD + one))
def test_any_bytes_are_an_approval_or_a_reason(body: bytes) -> None:
    with suppress(MalformedApprovalError):
        parse(body, {}, prefix="sebridge")


async def test_approval_of_a_pipeline_is_relayed(tmp_path: Path) -> None:
    async with world_of(tmp_path / "state.db") as world:
        world.imds.shows(imds_event())

        await world.handle(message(body=WRAPPED["pipelines"]))

        (outcome,) = await world.outcomes()
        assert outcome.type == "sebridge.startrequest.relayed.v1"

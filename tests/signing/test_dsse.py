"""The format of signatures: the vectors bit for bit, and a verdict for every change."""

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bridge.signing.dsse import ATTRIBUTE, SignedEvent, Verdict, judge, material
from bridge.signing.keys import PrivateKey, private_keys
from tests.signing.vectors import CORRUPT, OLD_FORM, VECTORS, jwk

(KEY,) = private_keys(json.dumps(jwk()))
(OTHER,) = private_keys(
    json.dumps(
        {
            "kty": "EC",
            "crv": "P-256",
            "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
            "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0",
            "d": "jpsQnnGQmL-YBIffH1136cspYG6-0iY7X1fCE9-E9LI",
        }
    )
)  # of RFC 7515, A.3
KEYS = {KEY.key_id: KEY.public}
BODY = (
    b'{"specversion":"1.0","id":"1","source":"/s","type":"t","subject":"e",'
    b'"time":"2026-03-02T12:00:00.25Z","datacontenttype":"application/json",'
    b'"severitynumber":9,"eventtype":"Freeze","data":{"a":1,"b":[1.5,"x"]}}'
)


class Named:
    """The key of the vectors under the name that they give it."""

    key_id = "testkey"

    def sign(self, message: bytes) -> bytes:
        return KEY.sign(message)

    def verifies(self, signature: bytes, message: bytes) -> bool:
        return KEY.public.verifies(signature, message)


def sealed(body: bytes = BODY, *signers: PrivateKey) -> dict[str, Any]:
    """Return an event with its signature."""
    event = SignedEvent.parse(body)
    return {ATTRIBUTE: material(event, signers or (KEY,)), **json.loads(body)}


def verdict(body: bytes | Mapping[str, Any]) -> Verdict:
    written = body if isinstance(body, bytes) else orjson.dumps(body)
    return judge(SignedEvent.parse(written), KEYS).verdict


@pytest.mark.parametrize("case", VECTORS)
def test_vector_is_signed_bit_for_bit(case: str) -> None:
    event, expected = VECTORS[case]

    assert material(event, [Named()]) == expected


@pytest.mark.parametrize("case", VECTORS)
def test_vector_is_verified(case: str) -> None:
    event, signature = VECTORS[case]
    signed = replace(event, attributes={**event.attributes, ATTRIBUTE: signature})

    assert judge(signed, {"testkey": Named()}).verdict is Verdict.HOLDS


@pytest.mark.parametrize("signature", [OLD_FORM, CORRUPT])
def test_vector_of_another_form_is_wrong(signature: str) -> None:
    event, _ = VECTORS["7"]
    signed = replace(event, attributes={**event.attributes, ATTRIBUTE: signature})

    assert judge(signed, {"testkey": Named()}).verdict is Verdict.WRONG


def test_signed_event_holds_and_names_its_key() -> None:
    found = judge(SignedEvent.parse(orjson.dumps(sealed())), KEYS)

    assert (found.verdict, found.key_id) == (Verdict.HOLDS, KEY.key_id)


def test_signature_needs_no_random_number() -> None:
    assert sealed() == sealed()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda event: event.pop(ATTRIBUTE), Verdict.UNSIGNED),
        (lambda event: event.update({ATTRIBUTE: ""}), Verdict.UNSIGNED),
        (lambda event: event.update(id="2"), Verdict.CHANGED),
        (lambda event: event.update(time="2026-03-02T12:00:01Z"), Verdict.CHANGED),
        (lambda event: event.update(time="never"), Verdict.CHANGED),
        (lambda event: event.update(eventtype="Reboot"), Verdict.CHANGED),
        (lambda event: event.pop("eventtype"), Verdict.CHANGED),
        (lambda event: event.update(eventtype={}), Verdict.CHANGED),
        (lambda event: event["data"].update(a=2), Verdict.CHANGED),
        (lambda event: event.pop("data"), Verdict.CHANGED),
        # Not signed: fractions of a second, another zone, and what is added.
        (lambda event: event.update(time="2026-03-02T13:00:00+01:00"), Verdict.HOLDS),
        (lambda event: event.update(time="2026-03-02T12:00:00"), Verdict.HOLDS),
        (lambda event: event.update(more="x"), Verdict.HOLDS),
    ],
)
def test_change_has_its_verdict(
    change: Callable[[dict[str, Any]], object], expected: Verdict
) -> None:
    event = sealed()
    change(event)

    assert verdict(event) is expected


def test_data_that_was_formatted_anew_is_distinguished() -> None:
    """As by a SIEM that shows JSON with blanks, or sorts it otherwise."""
    signed = sealed()

    assert verdict(json.dumps(signed).encode()) is Verdict.REFORMATTED
    assert verdict({**signed, "data": {"b": [1.5, "x"], "a": 1}}) is Verdict.REFORMATTED


def test_foreign_key_is_unknown() -> None:
    assert verdict(sealed(BODY, OTHER)) is Verdict.UNKNOWN_KEY


def test_foreign_key_under_the_name_of_a_known_one_is_wrong() -> None:
    signed = sealed(BODY, OTHER)
    envelope = json.loads(base64.b64decode(signed[ATTRIBUTE]))
    envelope["signatures"][0]["keyid"] = KEY.key_id
    signed[ATTRIBUTE] = base64.b64encode(orjson.dumps(envelope)).decode()

    assert verdict(signed) is Verdict.WRONG


def test_one_of_two_signatures_is_enough() -> None:
    """While a key is replaced, a signer signs with both."""
    assert verdict(sealed(BODY, OTHER, KEY)) is Verdict.HOLDS


@pytest.mark.parametrize(
    "payload",
    [
        {"core": "x"},
        {"core": "QUJD"},
        {"signedextattrs": ["eventtype"], "ext": None},
        {"signedextattrs": ["eventtype", "eventtype"]},
        {"signedextattrs": ["id"]},
        {"signedextattrs": [ATTRIBUTE]},
        {"signedextattrs": None},
        {"core": None},
        [],
        "core",
    ],
)
def test_payload_that_breaks_a_rule_is_wrong_though_it_is_signed(payload: Any) -> None:
    """Case 8 of the vectors."""
    signed = sealed()
    envelope = json.loads(base64.b64decode(signed[ATTRIBUTE]))
    if isinstance(payload, dict):
        content = json.loads(base64.b64decode(envelope["payload"])) | payload
        payload = {k: v for k, v in content.items() if v is not None}
    written = orjson.dumps(payload)
    kind = envelope["payloadType"].encode()
    message = b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(written), written)
    envelope["payload"] = base64.b64encode(written).decode()
    envelope["signatures"][0]["sig"] = base64.b64encode(KEY.sign(message)).decode()
    signed[ATTRIBUTE] = base64.b64encode(orjson.dumps(envelope)).decode()

    assert verdict(signed) is Verdict.WRONG


@given(
    st.text()
    | st.integers(-9, 9)
    | st.lists(st.text())
    | st.recursive(
        st.none() | st.booleans() | st.text(),
        lambda inner: st.dictionaries(
            st.sampled_from(["payload", "payloadType", "signatures", "keyid", "sig"]),
            inner | st.lists(inner),
        ),
    ).map(lambda found: base64.b64encode(orjson.dumps(found)).decode())
)
def test_nothing_in_place_of_an_envelope_is_taken(value: object) -> None:
    found = verdict({**json.loads(BODY), ATTRIBUTE: value})

    assert found in {Verdict.WRONG, Verdict.UNSIGNED, Verdict.UNKNOWN_KEY}


def test_other_type_of_payload_is_wrong() -> None:
    signed = sealed()
    envelope = json.loads(base64.b64decode(signed[ATTRIBUTE]))
    envelope["payloadType"] = "application/vnd.in-toto+json"
    signed[ATTRIBUTE] = base64.b64encode(orjson.dumps(envelope)).decode()

    assert verdict(signed) is Verdict.WRONG


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"id":"\xff"}', b"[" * 100_000])
def test_what_is_no_event_is_an_error_of_one_kind(body: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whose text nobody sees
        SignedEvent.parse(body)


def test_data_in_base64_counts_as_its_bytes() -> None:
    event = SignedEvent.parse(b'{"id":"1","data_base64":"8J+koQ=="}')

    assert event.data == b"\xf0\x9f\xa4\xa1"

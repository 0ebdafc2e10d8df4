"""Signatures, verified by the library of Standard Webhooks itself."""

from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace
from standardwebhooks import Webhook, WebhookVerificationError

from bridge.events.cloudevent import hash32
from bridge.foundation.errors import RefusedDeliveryError
from bridge.foundation.values import Secret
from bridge.sinks.base import Resources
from bridge.sinks.webhook.config import SignatureConfig, signed
from tests.support.configurations import webhook
from tests.support.fakes import FakeClock
from tests.support.sink_fixtures import Inbox, cloud_event, config_faults, opened_sink

OLD = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
NEW = "whsec_" + b64encode(bytes(range(64))).decode()


def signing(url: str, *secrets: str) -> dict[str, object]:
    return webhook(url, signature={"secrets": list(secrets)})


def signature_of(event_id: str, body: bytes, at: float, secret: str) -> dict[str, str]:
    config = SignatureConfig(secrets=(Secret(secret, {}),))
    return signed(config, event_id, body, datetime.fromtimestamp(at, UTC))


@pytest.mark.parametrize("secret", [OLD, OLD.removeprefix("whsec_")])
def test_vector_of_the_reference_library(secret: str) -> None:
    headers = signature_of(
        "msg_p5jXN8AQM9LWM0D4loKWxJek", b'{"test": 2432232314}', 1614265330.9, secret
    )

    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


async def test_receiver_verifies_what_was_sent_with_either_secret(
    resources: Resources, inbox: Inbox
) -> None:
    async with opened_sink(resources, signing(inbox.url, "env:OLD", NEW), OLD=OLD) as s:
        await s.deliver(cloud_event())

    (request,) = inbox.received
    headers = dict(request.headers)
    for secret in (OLD, NEW):
        assert Webhook(secret).verify(request.body, headers)["id"] == cloud_event().id
    stranger = "whsec_" + b64encode(b"x" * 24).decode()
    with pytest.raises(WebhookVerificationError):
        Webhook(stranger).verify(request.body, headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(OLD).verify(request.body + b" ", headers)


async def test_id_stays_and_time_goes_on_from_attempt_to_attempt(
    resources: Resources, inbox: Inbox
) -> None:
    clock = FakeClock()
    lent = replace(resources, clock=clock)
    async with opened_sink(lent, signing(inbox.url, OLD)) as sink:
        await sink.deliver(cloud_event())
        clock.pass_by(90)
        await sink.deliver(cloud_event())

    first, second = (request.headers for request in inbox.received)
    assert first["webhook-id"] == second["webhook-id"] == cloud_event().id
    times = [int(headers["webhook-timestamp"]) for headers in (first, second)]
    assert times[1] - times[0] == 90
    assert first["webhook-signature"] != second["webhook-signature"]


@pytest.mark.parametrize("event_id", ["a.b", "Ü", "a b", "x" * 129])
def test_id_that_the_standard_has_not_got_is_hashed(event_id: str) -> None:
    headers = signature_of(event_id, b"", 0, OLD)

    assert headers["webhook-id"] == hash32(event_id)


async def test_secret_that_was_rotated_into_none_refuses_the_sink_unshown(
    resources: Resources, inbox: Inbox, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(OLD)
    async with opened_sink(resources, signing(inbox.url, f"file:{secret}")) as sink:
        secret.write_text("5ec12e7")
        with pytest.raises(RefusedDeliveryError, match=r"signature\.secrets\[0\]") as e:
            await sink.deliver(cloud_event())

    assert "5ec12e7" not in str(e.value)
    assert inbox.received == []


@pytest.mark.parametrize(
    ("signature", "fault"),
    [
        ({}, "signature.secrets: is missing"),
        ({"secrets": []}, "signature.secrets: must hold at least one secret"),
        (
            {"secrets": [OLD, "whsec_c2hvcnQ="]},
            "signature.secrets[1]: must be whsec_ and 24 to 64 bytes in base64",
        ),
        (
            {"secrets": ["whsec_###"]},
            "signature.secrets[0]: must be whsec_ and 24 to 64 bytes in base64",
        ),
        (
            {"secrets": ["env:NONE"]},
            "signature.secrets[0]: the environment variable NONE is not set",
        ),
    ],
)
def test_configuration_says_what_is_wrong(
    signature: Mapping[str, object], fault: str
) -> None:
    options = {"type": "webhook", "url": "https://x.example", "signature": signature}

    assert config_faults(options) == [fault]


def test_headers_of_the_signature_may_not_be_given_as_well() -> None:
    options = signing("https://x.example", OLD) | {"headers": {"Webhook-Id": "1"}}

    assert config_faults(options) == [
        "headers.Webhook-Id: is set by signature: remove one of them"
    ]

"""Abuse protection, against a receiver that takes nothing without permission."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from bridge.foundation.errors import (
    ConfigError,
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
)
from bridge.foundation.pace import Pace
from bridge.sinks.base import Resources
from tests.sinks.receivers import Receiver
from tests.support.configurations import webhook
from tests.support.fakes import FakeClock
from tests.support.sink_fixtures import (
    Inbox,
    cloud_event,
    config_faults,
    opened_sink,
    sink_config,
)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver().serving() as running:
        yield running


def asking(
    receiver: Receiver, handshake: str = "required", **options: object
) -> dict[str, object]:
    return {**webhook(receiver.url, handshake=handshake), **options}


async def test_permission_is_asked_for_once_and_said_with_each_delivery(
    resources: Resources, receiver: Receiver
) -> None:
    async with opened_sink(resources, asking(receiver)) as sink:
        await sink.deliver(cloud_event())
        await sink.deliver(cloud_event())

    (asked,) = receiver.asked
    assert asked["WebHook-Request-Origin"] == "web-0"
    assert "WebHook-Request-Rate" not in asked
    assert "WebHook-Request-Callback" not in asked
    sent = [headers["WebHook-Request-Origin"] for headers in receiver.taken]
    assert sent == ["web-0", "web-0"]


async def test_nothing_is_asked_and_said_when_it_is_off(
    resources: Resources, receiver: Receiver
) -> None:
    receiver.is_open = True
    async with opened_sink(resources, asking(receiver, "off")) as sink:
        await sink.deliver(cloud_event())

    assert receiver.asked == []
    assert "WebHook-Request-Origin" not in receiver.taken[0]


@pytest.mark.parametrize(
    ("configured", "origin"),
    [("vms.example.com", "vms.example.com"), ("{vm_name}.example", "web-0.example")],
)
async def test_origin_may_be_configured(
    resources: Resources, receiver: Receiver, configured: str, origin: str
) -> None:
    receiver.allowed = origin.upper()
    options = asking(receiver, handshake_origin=configured)
    async with opened_sink(resources, options) as sink:
        await sink.deliver(cloud_event())

    assert receiver.asked[0]["WebHook-Request-Origin"] == origin


@pytest.mark.parametrize("name", ["web_0", "_web.0-", "Ünïcode"])
async def test_name_of_the_vm_becomes_a_dns_name(
    resources: Resources, receiver: Receiver, name: str
) -> None:
    lent = replace(resources, expand=lambda text: text.replace("{vm_name}", name))
    async with opened_sink(lent, asking(receiver)) as sink:
        await sink.deliver(cloud_event())

    expected = {"web_0": "web-0", "_web.0-": "web-0", "Ünïcode": "n-code"}[name]
    assert receiver.asked[0]["WebHook-Request-Origin"] == expected


async def test_vm_without_a_name_has_an_origin_all_the_same(
    resources: Resources, receiver: Receiver
) -> None:
    def expand(text: str) -> str:
        raise ValueError("{vm_name} is not known here")

    async with opened_sink(replace(resources, expand=expand), asking(receiver)) as sink:
        await sink.deliver(cloud_event())

    assert receiver.asked[0]["WebHook-Request-Origin"] == "scheduled-events-bridge"


@pytest.mark.parametrize("allowed", [None, "other.example"])
async def test_required_permission_that_is_not_given_refuses_the_sink(
    resources: Resources, receiver: Receiver, allowed: str | None
) -> None:
    receiver.allowed, receiver.is_open = allowed, True
    async with opened_sink(resources, asking(receiver)) as sink:
        with pytest.raises(RefusedDeliveryError, match="handshake") as caught:
            await sink.deliver(cloud_event())
        with pytest.raises(RefusedDeliveryError):
            await sink.deliver(cloud_event())

    assert caught.value.reason is Reason.UNAUTHORIZED
    assert receiver.taken == []
    assert len(receiver.asked) == 2


@pytest.mark.parametrize("allowed", [None, "other.example"])
async def test_attempted_handshake_that_fails_does_not_keep_from_sending(
    resources: Resources, receiver: Receiver, allowed: str | None
) -> None:
    receiver.allowed, receiver.is_open = allowed, True
    async with opened_sink(resources, asking(receiver, "attempt")) as sink:
        await sink.deliver(cloud_event())
        await sink.deliver(cloud_event())

    assert len(receiver.taken) == 2
    assert len(receiver.asked) == 1


@pytest.mark.parametrize("handshake", ["attempt", "required"])
async def test_permission_is_asked_for_again_after_a_refusal(
    resources: Resources, receiver: Receiver, handshake: str
) -> None:
    async with opened_sink(resources, asking(receiver, handshake)) as sink:
        await sink.deliver(cloud_event())
        receiver.permitted = False  # it was started anew, and has forgotten
        with pytest.raises(RefusedDeliveryError):
            await sink.deliver(cloud_event())
        await sink.deliver(cloud_event())

    assert len(receiver.asked) == 2
    assert len(receiver.taken) == 2


async def test_receiver_that_is_busy_is_asked_again_later(
    resources: Resources, receiver: Receiver
) -> None:
    receiver.status = 503
    async with opened_sink(resources, asking(receiver)) as sink:
        with pytest.raises(TransientDeliveryError):
            await sink.deliver(cloud_event())
        receiver.status = 200
        await sink.deliver(cloud_event())

    assert len(receiver.taken) == 1


@pytest.mark.parametrize(
    ("allowed", "granted"), [("120", 2.0), ("1", 1 / 60), ("*", None), (None, None)]
)
async def test_rate_that_is_allowed_is_obeyed(
    resources: Resources, receiver: Receiver, allowed: str | None, granted: float | None
) -> None:
    receiver.rate = allowed
    pace, clock = Pace(), FakeClock()
    lent = replace(resources, pace=pace, clock=clock)
    async with opened_sink(lent, asking(receiver)) as sink:
        await sink.deliver(cloud_event())

    assert pace.granted == granted
    wait = pace.opens_at - clock.monotonic()
    assert wait == pytest.approx(1 / granted) if granted else pace.opens_at == 0


@pytest.mark.parametrize(("most", "asked"), [(0.5, "30"), (2.01, "121"), (0.001, "1")])
async def test_rate_is_asked_for_a_minute(
    resources: Resources, receiver: Receiver, most: float, asked: str
) -> None:
    lent = replace(resources, pace=Pace(most=most))
    async with opened_sink(lent, asking(receiver)) as sink:
        await sink.deliver(cloud_event())

    assert receiver.asked[0]["WebHook-Request-Rate"] == asked


@pytest.mark.parametrize("rate", ["0", "often", "-1", "1.5"])
async def test_rate_that_is_none_is_no_permission(
    resources: Resources, receiver: Receiver, rate: str
) -> None:
    receiver.rate = rate
    async with opened_sink(resources, asking(receiver)) as sink:
        with pytest.raises(RefusedDeliveryError, match="a rate that is not a number"):
            await sink.deliver(cloud_event())


async def test_those_who_waited_for_the_answer_obey_the_rate_as_well(
    resources: Resources, receiver: Receiver
) -> None:
    """Else a backlog would begin with as many deliveries as there are slots."""
    receiver.rate = "60"
    async with opened_sink(resources, asking(receiver)) as sink:
        outcomes = await asyncio.gather(
            *(sink.deliver(cloud_event()) for _ in range(4)), return_exceptions=True
        )

    errors = [error for error in outcomes if error is not None]
    assert len(receiver.taken) == len(receiver.asked) == 1
    assert len(errors) == 3
    for error in errors:
        assert isinstance(error, TransientDeliveryError)
        assert error.retry_after == 1.0


async def test_those_who_waited_go_on_together_where_any_rate_is_allowed(
    resources: Resources, receiver: Receiver
) -> None:
    async with opened_sink(resources, asking(receiver)) as sink:
        await asyncio.gather(*(sink.deliver(cloud_event()) for _ in range(4)))

    assert len(receiver.taken) == 4
    assert len(receiver.asked) == 1


async def test_question_that_makes_a_receiver_fail_is_no_hindrance_to_an_attempt(
    resources: Resources, inbox: Inbox
) -> None:
    """Many a framework answers OPTIONS with 500; what counts is the delivery."""
    inbox.status = 500
    options = {"type": "webhook", "url": inbox.url, "handshake": "attempt"}
    async with opened_sink(resources, options) as sink:
        for _ in range(2):
            with pytest.raises(TransientDeliveryError):
                await sink.deliver(cloud_event())

    assert [r.method for r in inbox.received] == ["OPTIONS", "POST", "POST"]


async def test_receiver_that_leaves_the_question_unanswered_is_sent_to_all_the_same(
    resources: Resources, receiver: Receiver
) -> None:
    receiver.is_open, receiver.mute = True, frozenset({"OPTIONS"})
    async with opened_sink(resources, asking(receiver, "attempt")) as sink:
        await sink.deliver(cloud_event())
        asked = len(receiver.asked)
        await sink.deliver(cloud_event())

    assert len(receiver.asked) == asked
    assert len(receiver.taken) == 2


async def test_receiver_that_was_down_is_asked_once_it_is_there(
    resources: Resources, receiver: Receiver
) -> None:
    pace = Pace()
    receiver.rate, receiver.mute = "120", frozenset({"OPTIONS", "POST"})
    options = asking(receiver, "attempt")
    async with opened_sink(replace(resources, pace=pace), options) as sink:
        with pytest.raises(TransientDeliveryError):
            await sink.deliver(cloud_event())
        assert pace.granted is None
        receiver.mute = frozenset()
        await sink.deliver(cloud_event())

    assert pace.granted == 2.0


async def test_nobody_waits_long_behind_one_who_asks(resources: Resources) -> None:
    async with Inbox(is_silent=True).serving() as inbox:
        options = {"type": "webhook", "url": inbox.url, "timeout": 0.1}
        async with opened_sink(resources, options | {"handshake": "required"}) as sink:
            outcomes = await asyncio.gather(
                *(sink.deliver(cloud_event()) for _ in range(8)),
                return_exceptions=True,
            )

        assert all(isinstance(error, TransientDeliveryError) for error in outcomes)
        assert len(inbox.received) <= 2


async def test_doctor_is_told_what_is_allowed(
    resources: Resources, receiver: Receiver
) -> None:
    config = sink_config(asking(receiver))
    assert "allows web-0 to send" in await config.reach(resources)

    receiver.allowed = "other.example"
    with pytest.raises(RefusedDeliveryError, match="allows another origin"):
        await config.reach(resources)

    attempt = sink_config(asking(receiver, "attempt"))
    assert "allows another origin" in await attempt.reach(resources)
    assert receiver.taken == []


def test_configuration_says_what_is_wrong() -> None:
    options = {"type": "webhook", "url": "https://x.example"}

    assert config_faults({**options, "handshake_origin": "a b"}) == [
        'handshake_origin: must be a DNS name such as "vms.example.com"'
    ]
    assert config_faults({**options, "handshake_origin": "{vm_name} b"}) == [
        'handshake_origin: must be a DNS name such as "vms.example.com"'
    ]
    assert config_faults({**options, "handshake_origin": "{vm}.example"}) == [
        (
            "handshake_origin: '{vm}' is no placeholder; "
            "allowed are {vm_id}, {vm_name}, {group}"
        )
    ]
    headers = {"webhook-request-origin": "x"}
    assert config_faults({**options, "handshake": "attempt", "headers": headers}) == [
        "headers.webhook-request-origin: is set by handshake: remove one of them"
    ]


async def test_origin_that_becomes_no_dns_name_stops_the_start(
    resources: Resources, receiver: Receiver
) -> None:
    lent = replace(resources, expand=lambda text: text.replace("{vm_name}", "web_0"))
    options = asking(receiver, handshake_origin="{vm_name}.example")
    with pytest.raises(ConfigError, match=r"handshake_origin: is not a DNS name"):
        async with opened_sink(lent, options):
            pass

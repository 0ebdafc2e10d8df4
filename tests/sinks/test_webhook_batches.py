"""Several events in one request, against receivers that refuse what is documented."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from msgspec.structs import replace

from bridge.events.cloudevent import CloudEvent
from bridge.foundation.errors import (
    DeliveryError,
    PermanentDeliveryError,
    Reason,
    RefusedDeliveryError,
    RefusedEventError,
    TransientDeliveryError,
)
from bridge.sinks.base import Resources
from bridge.sinks.batch import BatchSink
from bridge.sinks.webhook.presets.registry import PRESETS, PresetName
from tests.receivers.azure import EventGrid, EventHub, Sentinel
from tests.receivers.elastic import Elastic
from tests.receivers.serving import Service, serving
from tests.receivers.splunk import Splunk
from tests.sinks.preset_ways import NAMES, WAYS, options
from tests.support.sink_fixtures import (
    Inbox,
    cloud_event,
    config_faults,
    opened_sink,
    sink_config,
)

TAKERS: tuple[PresetName, ...] = (
    "elastic",
    "eventgrid",
    "eventhubs",
    "sentinel",
    "splunk-hec",
)
URL = "http://127.0.0.1:9/hook"


def numbered(number: int, text: str = "") -> CloudEvent:
    return replace(cloud_event(text=text), id=f"{number:032x}")


EVENTS = [numbered(number) for number in range(3)]


@asynccontextmanager
async def opened(
    resources: Resources, table: Mapping[str, object], **environ: str
) -> AsyncIterator[BatchSink]:
    async with opened_sink(resources, {"batch": 100, **table}, **environ) as sink:
        assert isinstance(sink, BatchSink)
        yield sink


async def sent(
    resources: Resources,
    name: PresetName,
    service: Service,
    events: Sequence[CloudEvent] = EVENTS,
    more: Mapping[str, object] | None = None,
) -> Sequence[DeliveryError | None]:
    async with (
        serving(service) as url,
        opened(resources, {**options(name, url), **(more or {})}) as sink,
    ):
        return await sink.deliver_many(events)


def test_all_presets_that_take_several_are_tried() -> None:
    assert tuple(name for name in NAMES if PRESETS[name].many) == TAKERS


@pytest.mark.parametrize("name", TAKERS)
async def test_service_takes_several_events_in_one_request(
    name: PresetName, resources: Resources
) -> None:
    service = WAYS[name].service()

    assert await sent(resources, name, service) == [None] * 3
    assert len(service.taken) == 3


@pytest.mark.parametrize("name", TAKERS)
async def test_urgent_event_goes_alone_in_the_form_of_several(
    name: PresetName, resources: Resources
) -> None:
    service = WAYS[name].service()
    async with (
        serving(service) as url,
        opened(resources, options(name, url)) as sink,
    ):
        await sink.deliver(EVENTS[0])

    assert len(service.taken) == 1


@pytest.mark.parametrize("name", TAKERS)
async def test_wrong_credentials_refuse_all(
    name: PresetName, resources: Resources
) -> None:
    service, wrong = WAYS[name].service(), WAYS[name].wrong
    assert wrong is not None

    with pytest.raises(RefusedDeliveryError):
        await sent(resources, name, service, more=wrong)


@pytest.mark.parametrize("name", TAKERS)
async def test_server_error_is_about_all(
    name: PresetName, resources: Resources, inbox: Inbox
) -> None:
    inbox.status, inbox.headers = 503, {"Retry-After": "7"}
    async with opened(resources, options(name, inbox.url)) as sink:
        with pytest.raises(TransientDeliveryError) as caught:
            await sink.deliver_many(EVENTS)

    assert caught.value.retry_after == 7


# -- answers in part ------------------------------------------------------------


async def test_splunk_names_the_event_that_it_cannot_read(resources: Resources) -> None:
    """Those before it may be indexed already: it does not say, so they go again."""
    service = Splunk(bad=frozenset({EVENTS[1].id}))

    with pytest.raises(RefusedEventError) as caught:
        await sent(resources, "splunk-hec", service)

    assert caught.value.place == 1
    assert [one["event"]["id"] for one in service.taken] == [EVENTS[0].id]


async def test_splunk_that_names_no_event_refuses_all(resources: Resources) -> None:
    with pytest.raises(PermanentDeliveryError) as caught:
        await sent(resources, "splunk-hec", Splunk(says=6))

    assert not isinstance(caught.value, RefusedEventError)


@pytest.mark.parametrize(
    ("code", "error"), [(9, TransientDeliveryError), (7, RefusedDeliveryError)]
)
async def test_splunk_that_is_busy_or_forbids_says_so_of_all(
    code: int, error: type[DeliveryError], resources: Resources
) -> None:
    with pytest.raises(error):
        await sent(resources, "splunk-hec", Splunk(says=code))


async def test_elastic_says_what_became_of_each(resources: Resources) -> None:
    """A conflict is a repeat, which counts as delivered."""
    service = Elastic(items={EVENTS[0].id: 429, EVENTS[1].id: 400})
    events = [*EVENTS, EVENTS[2]]

    found = await sent(resources, "elastic", service, events)

    busy, bad, first, repeat = found
    assert isinstance(busy, TransientDeliveryError)
    assert busy.reason is Reason.THROTTLED
    assert isinstance(bad, PermanentDeliveryError)
    assert (first, repeat) == (None, None)


async def test_elastic_answer_about_other_events_says_nothing(
    resources: Resources, inbox: Inbox
) -> None:
    inbox.answer = b'{"errors":true,"items":[{"create":{"status":400}}]}'
    async with opened(resources, options("elastic", inbox.url)) as sink:
        with pytest.raises(TransientDeliveryError):
            await sink.deliver_many(EVENTS)


async def test_long_answer_about_many_events_is_read(
    resources: Resources, inbox: Inbox
) -> None:
    """Its limit grows with the events: 64 KiB would be cut in the middle."""
    why = {"type": "document_parsing_exception", "reason": "x" * 700}
    item = {"create": {"status": 400, "error": why}}
    answer = {"errors": True, "items": [item] * 100}
    inbox.answer = json.dumps(answer).encode()
    assert len(inbox.answer) > 64 * 1024
    events = [numbered(number) for number in range(100)]
    async with opened(resources, options("elastic", inbox.url)) as sink:
        found = await sink.deliver_many(events)

    assert [type(one) for one in found] == [PermanentDeliveryError] * 100


@pytest.mark.parametrize(
    ("name", "service"),
    [
        ("sentinel", Sentinel(status=413)),
        ("eventgrid", EventGrid(status=400)),
        ("eventhubs", EventHub(status=413)),
    ],
)
async def test_others_take_all_or_nothing(
    name: PresetName, service: Service, resources: Resources
) -> None:
    with pytest.raises(PermanentDeliveryError):
        await sent(resources, name, service)


async def test_rule_of_the_configuration_replaces_that_of_the_preset(
    resources: Resources,
) -> None:
    service = Elastic(items={EVENTS[0].id: 429})

    found = await sent(
        resources, "elastic", service, more={"success": {"status": [200]}}
    )

    assert found == [None] * 3


# -- what goes in one request -----------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("batch", "application/cloudevents-batch+json; charset=utf-8"),
        ("array", "application/json"),
    ],
)
async def test_content_mode_is_an_array_of_events(
    mode: str, kind: str, resources: Resources, inbox: Inbox
) -> None:
    table = {"type": "webhook", "url": inbox.url, "content_mode": mode}
    async with opened(resources, table) as sink:
        assert await sink.deliver_many(EVENTS) == [None] * 3

    (request,) = inbox.received
    assert request.headers["Content-Type"] == kind
    assert [one["id"] for one in json.loads(request.body)] == [e.id for e in EVENTS]


async def test_request_holds_no_more_bytes_than_it_may(
    resources: Resources, inbox: Inbox
) -> None:
    """Counted as they are sent: the form of a service is larger than the event."""
    most = 2 * len(EVENTS[0].to_json()) + 3
    table = {"type": "webhook", "url": inbox.url, "content_mode": "batch"}
    async with opened(resources, {**table, "batch_size": most}) as sink:
        assert await sink.deliver_many(EVENTS) == [None] * 2
        assert await sink.deliver_many([numbered(9, "x" * 9000)]) == [None]

    assert len(inbox.received[0].body) == most


async def test_events_of_one_event_hub_request_share_their_partition(
    resources: Resources,
) -> None:
    service = EventHub()
    other = replace(EVENTS[1], source="/elsewhere")

    found = await sent(resources, "eventhubs", service, [EVENTS[0], other, EVENTS[2]])

    assert found == [None], "the next one goes to another partition"
    assert [key for key, _ in service.taken] == [EVENTS[0].source]
    assert json.loads(service.taken[0][1])["id"] == EVENTS[0].id


async def test_source_that_is_too_long_for_a_partition_key_is_hashed(
    resources: Resources,
) -> None:
    service = EventHub()
    events = [replace(one, source="/" + "s" * 200) for one in EVENTS]

    assert await sent(resources, "eventhubs", service, events) == [None] * 3
    assert {len(key or "") for key, _ in service.taken} == {32}


async def test_signature_of_a_request_knows_a_repeat(
    resources: Resources, inbox: Inbox
) -> None:
    secret = "whsec_" + "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"
    table = {
        "type": "webhook",
        "url": inbox.url,
        "content_mode": "batch",
        "signature": {"secrets": [secret]},
    }
    async with opened(resources, table) as sink:
        await sink.deliver_many(EVENTS)
        await sink.deliver_many(EVENTS)
        await sink.deliver_many(EVENTS[:2])

    first, again, other = (one.headers["webhook-id"] for one in inbox.received)
    assert first == again != other


async def test_handshake_comes_first(resources: Resources, inbox: Inbox) -> None:
    table = {
        "type": "webhook",
        "url": inbox.url,
        "content_mode": "batch",
        "handshake": "attempt",
        "handshake_origin": "vms.example.com",
    }
    async with opened(resources, table) as sink:
        await sink.deliver_many(EVENTS)
        await sink.deliver_many(EVENTS)

    assert [one.method for one in inbox.received] == ["OPTIONS", "POST", "POST"]


async def test_preview_shows_the_form_of_several(resources: Resources) -> None:
    config = sink_config(options("eventhubs", batch=100))

    preview = await config.preview(resources, EVENTS[0])

    (entry,) = json.loads(preview.body)
    assert json.loads(entry["Body"])["id"] == EVENTS[0].id
    assert "Content-Type: application/vnd.microsoft.servicebus.json" in preview.head


# -- the configuration ------------------------------------------------------------

ALLOWED = (
    'the presets "elastic", "eventgrid", "eventhubs", "sentinel", "splunk-hec" '
    'and the values "batch" and "array" of content_mode take several'
)


@pytest.mark.parametrize(
    ("more", "by"),
    [
        ({}, 'content_mode = "structured"'),
        ({"content_mode": "binary"}, 'content_mode = "binary"'),
        ({"preset": "teams"}, 'preset = "teams"'),
        ({"preset": "datadog", "auth": {"value": "k"}}, 'preset = "datadog"'),
    ],
)
def test_sink_that_takes_one_event_refuses_a_batch(
    more: Mapping[str, object], by: str
) -> None:
    table = {"type": "webhook", "url": URL, "batch": 2, **more}

    assert config_faults(table) == [
        f"batch: must be 1: {by} takes one event a request; {ALLOWED}"
    ]


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("batch", 0, "must be 1 to 1000"),
        ("batch", 1001, "must be 1 to 1000"),
        ("batch_size", 0, "must be more than 0"),
        ("batch_wait", "4s", "must be at most 3s"),
    ],
)
@pytest.mark.parametrize(
    "table",
    [
        {"type": "webhook", "url": URL, "content_mode": "batch"},
        {"type": "file", "path": "/tmp/x", "max_size": 0},  # noqa: S108 - never opened
        {"type": "servicebus", "namespace": "x.example.net", "topic": "t"},
    ],
)
def test_limits_of_a_request_are_checked(
    table: Mapping[str, object], key: str, value: object, what: str
) -> None:
    assert config_faults({**table, key: value}) == [f"{key}: {what}"]


@pytest.mark.parametrize("kind", ["slack", "syslog", "email", "command"])
def test_kind_of_sink_that_takes_one_event_knows_no_batch(kind: str) -> None:
    assert any(
        fault.startswith("batch: unknown key")
        for fault in config_faults({"type": kind, "batch": 2})
    )


@pytest.mark.parametrize(("batch", "slots"), [(1, 8), (3, 8), (100, 200)])
def test_deliveries_under_way_fill_the_next_request(batch: int, slots: int) -> None:
    table = {"type": "webhook", "url": URL, "content_mode": "batch", "batch": batch}

    config = sink_config(table)

    assert config.slots == slots
    limits = cast("Any", config.batch_limits)
    assert (limits is None) == (batch == 1)

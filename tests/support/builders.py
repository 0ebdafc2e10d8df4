"""Values that tests are about: documents, deliveries, contexts, with little to say."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

from prometheus_client import Histogram

from bridge.events.build import EventContext, OutgoingEvent, from_bridge
from bridge.events.cloudevent import CloudEvent, rfc3339
from bridge.events.data import BridgeData
from bridge.events.document import Document, parse
from bridge.events.identity import Identity
from bridge.events.routing import Route, Router, Subject, When
from bridge.foundation.clock import Clock, PauseMeter
from bridge.imds.poller import Metadata, Poller
from bridge.outbox.storage.database import Database
from bridge.outbox.storage.file import File
from bridge.outbox.storage.journal import Timings
from bridge.outbox.store import Outbox
from bridge.pipeline.observer import Observer
from bridge.telemetry.metrics import Metrics
from tests.support.fakes import START

DATA = Path(__file__).parents[1] / "data"
SINK = "siem"
EVENT_ID = "C7061BAC-AFDC-4513-B24B-AA5F13A16123"
ME = Identity(
    vm_name="WestNO_0",
    vm_id="13f56399-bd52-4150-9748-7190aae1ff21",
    resource_id=(
        "/subscriptions/8D10DA13-8125-4BA9-A717-BF7490507B3D/resourceGroups/Web-RG"
        "/providers/Microsoft.Compute/virtualMachines/WestNO_0"
    ),
    location="westnorway",
    vm_scale_set_name="WestNO",
)


def event_context_of(identity: Identity = ME) -> EventContext:
    source = identity.source or "urn:sebridge:nowhere"
    return EventContext(
        prefix="sebridge", source=source, identity=identity, version="1.2.3"
    )


def own_event(
    context: EventContext,
    what: str,
    *,
    observed_at: datetime = START,
    reason: str | None = None,
    **members: Any,
) -> OutgoingEvent:
    """Return what a bridge says of itself; ``members`` are those of ``BridgeData``."""
    data = BridgeData(
        observed_at=rfc3339(observed_at),
        reporter=context.reporter,
        reason=reason,
        **members,
    )
    return from_bridge(context, what, data)


def not_before(seconds: float, since: datetime = START) -> str:
    """Return a NotBefore as the service writes it."""
    return format_datetime(since + timedelta(seconds=seconds), usegmt=True)


def imds_event(event_id: str = EVENT_ID, **fields: object) -> dict[str, object]:
    """Return a Freeze in 15 minutes, with ``fields`` in their place."""
    return {
        "EventId": event_id,
        "EventStatus": "Scheduled",
        "EventType": "Freeze",
        "ResourceType": "VirtualMachine",
        "Resources": ["WestNO_0", "WestNO_1"],
        "NotBefore": not_before(900),
        "Description": "Host server is undergoing maintenance.",
        "EventSource": "Platform",
        "DurationInSeconds": 5,
        **fields,
    }


def started(event_id: str = EVENT_ID, **fields: object) -> dict[str, object]:
    """Return the same once it has started."""
    return imds_event(event_id, **{"EventStatus": "Started", "NotBefore": "", **fields})


def body_of(*events: object, incarnation: object = 2) -> bytes:
    """Return a document as IMDS sends it; incarnation None leaves the number out."""
    number = {} if incarnation is None else {"DocumentIncarnation": incarnation}
    return json.dumps({**number, "Events": list(events)}).encode()


def document(*events: object, incarnation: object = 2) -> Document:
    return parse(body_of(*events, incarnation=incarnation))


def recorded(case: str) -> list[bytes]:
    """Return the bodies of the documents of one case under tests/data."""
    case_file = json.loads((DATA / f"{case}.json").read_text(encoding="utf-8"))
    return [json.dumps(doc).encode() for doc in case_file["documents"]]


@asynccontextmanager
async def patient_outbox(path: Path, router: Router) -> AsyncIterator[Outbox]:
    """Open a state file as the forwarder does; no busy machine makes its disk fail."""
    timings = Timings(patience=60.0)
    async with Database.open(File(path, may_degrade=True), timings=timings) as database:
        outbox = await Outbox.of(database, router)
        yield outbox


def router(
    routes: Mapping[str, Route] | None = None, identity: Identity = ME
) -> Router:
    """Return a router; by default everything goes to one sink."""
    return Router(
        routes={SINK: route()} if routes is None else routes,
        scope="all",
        identity=identity,
    )


def route(when: When | None = None) -> Route:
    return Route(
        when=when or When(),
        scope=(when and when.scope) or "all",
        lifecycle=when is None or when.lifecycle is not False,
    )


def outgoing(  # noqa: PLR0913 - each is one thing a test varies
    name: str,
    *,
    key: str | None = None,
    cause: str | None = None,
    not_before: datetime | None = None,
    is_started: bool = False,
    is_last: bool = False,
    subject: Subject | None = None,
    data: Mapping[str, object] | None = None,
) -> OutgoingEvent:
    """Return something to publish whose CloudEvent has the id ``name``."""
    return OutgoingEvent(
        event=CloudEvent(
            id=name,
            source="/tests",
            type="sebridge.scheduledevent.scheduled.v1",
            time="2026-03-02T12:00:00Z",
            dataschema="urn:sebridge:schema:scheduledevent:v1",
            extensions={} if key is None else {"correlationid": key},
            data=data or {},
        ),
        cause=cause or name,
        subject=subject or Subject(transition="scheduled"),
        key=key,
        not_before=not_before,
        is_started=is_started,
        is_last=is_last,
    )


def observed(  # noqa: PLR0913 - what the two are made of
    client: Metadata,
    outbox: Outbox,
    event_context: EventContext,
    clock: Clock,
    metrics: Metrics,
    *,
    with_documents: bool = False,
    is_waiting: bool = False,
    spacing: float = 0.0,
) -> tuple[Poller, Observer]:
    """Return a poller, and the observer that it hands documents to."""
    observer = Observer(
        outbox=outbox,
        event_context=event_context,
        clock=clock,
        metrics=metrics,
        poll_interval=client.config.poll_interval,
        pauses=PauseMeter(clock, metrics.paused.observe),
        with_documents=with_documents,
        is_waiting=is_waiting,
    )
    return Poller(client, observer, clock, metrics, spacing), observer


def sizes_histogram() -> Histogram:
    """Return what counts the events of each request to a sink."""
    return Metrics([SINK], "1").batch_events.labels(SINK)

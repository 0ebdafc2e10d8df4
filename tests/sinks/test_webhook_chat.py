"""The templates of ``config/presets/chat.md``, as they stand on the page."""

import re
import tomllib
from collections.abc import Mapping

import pytest

from bridge.events.samples import one_of_each
from bridge.foundation.errors import (
    DeliveryError,
    PermanentDeliveryError,
    TransientDeliveryError,
)
from bridge.sinks.base import Resources
from tests.receivers.chat import SERVICES, Chat
from tests.receivers.serving import serving
from tests.sinks.preset_ways import ROOT
from tests.support.sink_fixtures import cloud_event, opened_sink

PAGE = (ROOT / "config" / "presets" / "chat.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```toml\n(.*?)\n```\n", PAGE, re.DOTALL)
TABLES: Mapping[str, dict[str, object]] = {
    table["name"]: table for block in BLOCKS for table in tomllib.loads(block)["sinks"]
}
ODD = "@channel <users/all> <b onload=x> & `code` ```\n" + 'ä"\\' * 900


async def sent(name: str, service: Chat, resources: Resources, *events: object) -> None:
    async with serving(service) as url:
        table = {**TABLES[name], "url": url, "max_rate": None}
        table = {k: v for k, v in table.items() if v is not None}
        async with opened_sink(resources, table, NTFY_TOKEN="tk") as sink:
            for event in events:
                await sink.deliver(event)  # type: ignore[arg-type]  # of the tests


def test_there_is_a_receiver_for_each_template() -> None:
    assert TABLES.keys() == SERVICES.keys()


@pytest.mark.parametrize("name", SERVICES)
async def test_service_takes_every_event(name: str, resources: Resources) -> None:
    service = SERVICES[name]()
    events = list(one_of_each(lifecycle=True))

    await sent(name, service, resources, *events)

    assert len(service.taken) == len(events)


@pytest.mark.parametrize("name", SERVICES)
async def test_text_of_an_event_is_data(name: str, resources: Resources) -> None:
    service = SERVICES[name]()
    raw = {
        "EventId": ODD[:50],
        "EventType": ODD,
        "Description": ODD,
        "Resources": [ODD, 7],
    }

    await sent(name, service, resources, cloud_event(event=raw, reason=ODD))

    assert len(service.taken) == 1


@pytest.mark.parametrize("name", SERVICES)
async def test_answers_are_sorted(name: str, resources: Resources) -> None:
    kinds: Mapping[int, type[DeliveryError]] = {
        400: PermanentDeliveryError,
        429: TransientDeliveryError,
        500: TransientDeliveryError,
    }
    for status, kind in kinds.items():
        with pytest.raises(kind):
            await sent(name, SERVICES[name](status), resources, cloud_event())

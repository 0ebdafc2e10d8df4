"""What every sink owes the relay, over all of SINK_TYPES."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from bridge.events.routing import When
from bridge.foundation.errors import (
    DeliveryError,
    PermanentDeliveryError,
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
)
from bridge.simulator.servicebus.broker import Broker
from bridge.sinks.base import Resources, Sink, SinkConfig
from bridge.sinks.registry import SINK_TYPES
from tests.docs.pages import section
from tests.sinks.sink_ways import WAYS, wayless
from tests.sinks.ways.way import Servers
from tests.support.mail import Relay
from tests.support.sink_fixtures import (
    SECRET,
    Inbox,
    LogReceiver,
    cloud_event,
    opened_sink,
    sink_config,
)

KINDS = [kind for kind in SINK_TYPES if kind in WAYS]
OVER_HTTP = [kind for kind in KINDS if WAYS[kind].over == "http"]
OVER_NETWORK = [kind for kind in KINDS if WAYS[kind].over != "machine"]
NOWHERE = Servers(
    http="http://127.0.0.1:9",
    bus="Endpoint=sb://absent.invalid/;SharedAccessKeyName=k;SharedAccessKey=k",
    mail=9,
    logs=9,
)
WITH_SECRETS = [kind for kind in KINDS if WAYS[kind].secrets]


@dataclass(frozen=True, slots=True)
class Stage:
    """All that a sink may be opened against, so that a test needs to ask for one."""

    resources: Resources
    inbox: Inbox
    broker: Broker
    folder: Path
    logs: LogReceiver
    relay: Relay

    def options(self, kind: str) -> dict[str, object]:
        way = WAYS[kind]
        servers = Servers(
            http=self.inbox.url,
            bus=self.broker.connection_string,
            mail=self.relay.port,
            logs=self.logs.port,
            folder=self.folder,
        )
        return {"type": kind, **way.least(servers), **way.more(servers)}

    def taken(self) -> int:
        """Return how many events have arrived, wherever that is."""
        topic = self.broker.snapshot()["scheduled-events/Subscriptions/consumer"]
        files = [path.read_bytes() for path in self.folder.iterdir()]
        lines = sum(data.count(b"\n") for data in files)
        messages = self.logs.data.count(b" sebridge - ")
        mails = len(self.relay.mails)
        return topic.active + len(self.inbox.received) + lines + messages + mails

    def opened(self, kind: str) -> AbstractAsyncContextManager[Sink]:
        return opened_sink(self.resources, self.options(kind))

    async def stop_broker(self) -> None:
        await self.broker.__aexit__(None, None, None)


@pytest.fixture
async def stage(
    resources: Resources, inbox: Inbox, broker: Broker, tmp_path: Path
) -> AsyncIterator[Stage]:
    logs, relay = LogReceiver(), Relay()
    async with logs.serving(), relay.serving():
        yield Stage(resources, inbox, broker, tmp_path, logs, relay)


async def failed(sink: Sink) -> DeliveryError:
    with pytest.raises(DeliveryError) as caught:
        await sink.deliver(cloud_event())
    return caught.value


def test_every_type_of_sink_is_under_contract() -> None:
    assert wayless() == []
    assert set(WAYS) == set(SINK_TYPES)
    assert set(OVER_HTTP) <= set(WITH_SECRETS)
    assert [kind for kind, way in WAYS.items() if way.secrets and not way.address] == []


@pytest.mark.parametrize("kind", KINDS)
async def test_deliver_returns_when_the_event_is_taken(kind: str, stage: Stage) -> None:
    async with stage.opened(kind) as sink:
        await sink.deliver(cloud_event())
        if kind == "syslog":  # the receiver's kernel has it before the receiver
            await stage.logs.arrived(1)

    assert stage.taken() == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_is_connected_before_the_first_delivery(
    kind: str, stage: Stage
) -> None:
    """So that a sink which is down does not keep the forwarder from starting."""
    options = stage.options(kind)
    await stage.stop_broker()

    async with opened_sink(stage.resources, options):
        pass

    assert stage.inbox.received == []
    assert stage.logs.connections == 0
    assert list(stage.folder.iterdir()) == []


@pytest.mark.parametrize("kind", OVER_HTTP)
@pytest.mark.parametrize(
    ("status", "error", "reason"),
    [
        (400, PermanentDeliveryError, Reason.REJECTED),
        (401, RefusedDeliveryError, Reason.UNAUTHORIZED),
        (403, RefusedDeliveryError, Reason.UNAUTHORIZED),
        (404, RefusedDeliveryError, Reason.NOT_FOUND),
        (408, TransientDeliveryError, Reason.TIMEOUT),
        (410, RefusedDeliveryError, Reason.NOT_FOUND),
        (413, PermanentDeliveryError, Reason.TOO_LARGE),
        (425, TransientDeliveryError, Reason.THROTTLED),
        (429, TransientDeliveryError, Reason.THROTTLED),
        (500, TransientDeliveryError, Reason.SERVER),
        (503, TransientDeliveryError, Reason.SERVER),
    ],
)
async def test_status_decides_what_becomes_of_a_delivery(
    kind: str,
    status: int,
    error: type[DeliveryError],
    reason: Reason,
    stage: Stage,
) -> None:
    stage.inbox.status, stage.inbox.answer = status, b"{}"
    async with stage.opened(kind) as sink:
        failure = await failed(sink)

    assert type(failure) is error
    assert failure.reason is reason


@pytest.mark.parametrize("kind", OVER_HTTP)
async def test_redirect_is_not_followed(kind: str, stage: Stage) -> None:
    stage.inbox.status, stage.inbox.headers = (
        307,
        {"Location": f"{stage.inbox.url}/elsewhere"},
    )
    async with stage.opened(kind) as sink:
        failure = await failed(sink)

    assert failure.reason is Reason.REDIRECTED
    assert len(stage.inbox.received) == 1


@pytest.mark.parametrize("kind", OVER_HTTP)
@pytest.mark.parametrize("value", ["7", "Sat, 21 Nov 2026 10:00:07 GMT"])
async def test_retry_after_is_passed_on(kind: str, value: str, stage: Stage) -> None:
    """A date is read by the server's own clock: ours may be wrong."""
    stage.inbox.status = 503
    stage.inbox.headers = {
        "Retry-After": value,
        "Date": "Sat, 21 Nov 2026 10:00:00 GMT",
    }
    async with stage.opened(kind) as sink:
        failure = await failed(sink)

    assert isinstance(failure, TransientDeliveryError)
    assert failure.retry_after == 7


@pytest.mark.parametrize("kind", OVER_HTTP)
async def test_silent_server_is_a_timeout(kind: str, stage: Stage) -> None:
    stage.inbox.is_silent = True
    options = {**stage.options(kind), "timeout": "500ms"}
    async with opened_sink(stage.resources, options) as sink:
        failure = await failed(sink)

    assert isinstance(failure, TransientDeliveryError)
    assert failure.reason is Reason.TIMEOUT


@pytest.mark.parametrize("kind", OVER_HTTP)
async def test_reset_is_transient(kind: str, stage: Stage) -> None:
    stage.inbox.hangs_up = True
    async with stage.opened(kind) as sink:
        failure = await failed(sink)

    assert isinstance(failure, TransientDeliveryError)
    assert failure.reason is Reason.CONNECTION


@pytest.mark.parametrize("kind", OVER_NETWORK)
async def test_other_side_that_is_down_is_transient(kind: str, stage: Stage) -> None:
    options = {**stage.options(kind), **WAYS[kind].unreachable}
    if kind in OVER_HTTP:  # the discard port: nobody listens
        options[WAYS[kind].address] = f"http://127.0.0.1:9/{SECRET}"
    await stage.stop_broker()
    async with opened_sink(stage.resources, options) as sink:
        failure = await failed(sink)

    assert isinstance(failure, TransientDeliveryError)
    assert failure.reason is Reason.CONNECTION


@pytest.mark.parametrize("kind", WITH_SECRETS)
async def test_no_secret_is_ever_in_an_error_or_a_repr(kind: str, stage: Stage) -> None:
    stage.inbox.status, stage.inbox.answer = 400, f"no such key {SECRET}".encode()
    stage.broker.faults.refuse_attach("scheduled-events")
    options = stage.options(kind)
    async with opened_sink(stage.resources, options) as sink:
        failure = await failed(sink)
        shown = f"{failure} {failure!r} {sink!r} {sink_config(options)!r}"

    assert not any(secret in shown for secret in WAYS[kind].secrets)


@pytest.mark.parametrize("kind", OVER_HTTP)
async def test_proxy_of_the_environment_is_not_used(
    kind: str,
    stage: Stage,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with stage.opened(kind) as sink:
        await sink.deliver(cloud_event())

    assert len(stage.inbox.received) == 1


@pytest.mark.parametrize("kind", WITH_SECRETS)
async def test_secret_that_is_gone_refuses_and_one_that_is_back_delivers(
    kind: str, stage: Stage
) -> None:
    options = stage.options(kind)
    key = WAYS[kind].address
    environ = {"IT": str(options[key])}
    config = sink_config({**options, key: "env:IT"}, environ)
    async with config.open(stage.resources) as sink:
        it = environ.pop("IT")
        failure = await failed(sink)
        environ["IT"] = it
        await sink.deliver(cloud_event())

    assert isinstance(failure, RefusedDeliveryError)
    assert "IT" in str(failure)


@pytest.mark.parametrize("kind", KINDS)
async def test_other_side_is_reached_without_publishing(
    kind: str, stage: Stage
) -> None:
    """For ``sebridge check --connect``."""
    stage.inbox.status = 405
    found = await sink_config(stage.options(kind)).reach(stage.resources)

    assert not any(secret in found for secret in WAYS[kind].secrets)
    assert [r.method for r in stage.inbox.received] in ([], ["OPTIONS"])
    assert stage.taken() == len(stage.inbox.received)


@pytest.mark.parametrize("kind", KINDS)
async def test_other_side_that_cannot_be_reached_is_reported(
    kind: str, stage: Stage
) -> None:
    stage.inbox.hangs_up = True
    stage.broker.faults.refuse_attach("scheduled-events")
    config = sink_config({**stage.options(kind), **WAYS[kind].unreachable})
    with pytest.raises(DeliveryError):
        await config.reach(stage.resources)


@pytest.mark.parametrize("key", ["scope", "lifecycle"])
def test_default_of_routing_is_the_one_that_the_pages_name(key: str) -> None:
    """What an operator gets who says nothing depends on the type."""
    keys = section("config/sinks/README.md", "## Keys that every sink has")
    (cell,) = re.findall(rf"(?m)^\| `when\.{key}` \| ([^|]+) \|", keys)
    *named, (_, others) = (part.split(": ") for part in cell.split("; "))
    found = {kind.strip(" `"): v for kinds, v in named for kind in kinds.split(",")}
    of_code = {k: getattr(config, f"default_{key}") for k, config in SINK_TYPES.items()}

    assert {kind: found.get(kind, others).strip("`") for kind in SINK_TYPES} == {
        kind: json.dumps(value).strip('"') for kind, value in of_code.items()
    }, f"name the type in config/sinks/README.md, when.{key}"
    assert isinstance(When.__doc__, str)
    text = " ".join(When.__doc__.partition(f" {key}: ")[2].split())
    of_schema = text.partition("Left out: ")[2].partition(".")[0]
    unusual = [kind for kind in SINK_TYPES if kind in found]
    assert all(kind in of_schema for kind in unusual), "say it in When's docstring, too"


def test_names_of_entities_are_keys_of_the_sink() -> None:
    """So that they can be checked, and filled in, under these keys."""
    for kind in KINDS:
        config = sink_config({"type": kind, **WAYS[kind].least(NOWHERE)})
        assert config.entities.items() <= msgspec.structs.asdict(config).items()


@pytest.mark.parametrize("config", SINK_TYPES.values())
def test_every_sink_takes_several_deliveries_or_says_one(
    config: type[SinkConfig],
) -> None:
    assert config.concurrency >= 1


@pytest.mark.parametrize("host", ["169.254.169.254", "168.63.129.16", "[fe80::1]"])
@pytest.mark.parametrize("kind", OVER_HTTP)
async def test_nothing_is_sent_to_what_belongs_to_azure(
    kind: str, host: str, stage: Stage
) -> None:
    """Not either where a secret is rotated to an address that `check` never saw."""
    key = WAYS[kind].address
    environ = {"URL": "http://127.0.0.1:9/"}
    config = sink_config({**stage.options(kind), key: "env:URL"}, environ)
    environ["URL"] = f"http://{host}/{SECRET}"
    async with config.open(stage.resources) as sink:
        with pytest.raises(RefusedDeliveryError, match="forbidden address") as e:
            await sink.deliver(cloud_event())

    assert SECRET not in str(e.value)

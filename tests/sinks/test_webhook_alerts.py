"""Presets for alerts, tickets and changes: through the life of an event."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from msgspec.structs import replace

from bridge.events.build import from_outcome
from bridge.events.cloudevent import CloudEvent, hash32
from bridge.events.command_result import CommandResult, from_command
from bridge.events.vocabulary import TransitionKind
from bridge.foundation.errors import (
    PermanentDeliveryError,
    RefusedDeliveryError,
    TransientDeliveryError,
)
from bridge.net.http_client import Answer
from bridge.sinks.base import Resources
from bridge.sinks.webhook.presets.alert import AlertAction, alert, begins
from bridge.sinks.webhook.presets.preset import Call, advanced
from bridge.sinks.webhook.presets.registry import PRESETS, PresetName
from bridge.sinks.webhook.sink import RemindingWebhook
from tests.receivers import alerting, datadog, jira, pagerduty, servicenow
from tests.receivers.serving import Post, Service, serving
from tests.sinks.preset_ways import WAYS, options, talked
from tests.support.builders import EVENT_ID, event_context_of, imds_event, own_event
from tests.support.example_events import outcome, transition
from tests.support.example_events import published as outgoing
from tests.support.fakes import START, FakeClock
from tests.support.ports import free_port
from tests.support.sink_fixtures import (
    Inbox,
    cloud_event,
    config_faults,
    opened_sink,
    sink_config,
)

ALERTMANAGER = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
KEY = EVENT_ID.upper()


def published(
    step: str = "scheduled",
    *,
    raw: dict[str, object] | None = None,
    before: dict[str, object] | None = None,
    at: datetime = START,
) -> CloudEvent:
    return outgoing(transition(step, raw, before), at=at).event


def approved(what: str = "relayed", **more: object) -> CloudEvent:
    request = {"messageId": "m1", "approvedBy": "ada@contoso.com", "reason": "now"}
    found = outcome(what, request=request, **more)
    return from_outcome(event_context_of(), found, START).event


def command(what: str, cause: CloudEvent | None = None) -> CloudEvent:
    result = CommandResult(
        sink="drain",
        outcome=what,
        action="prepare",
        cause=cause or published(),
        exit_code=1,
        signal=None,
        timed_out=False,
        seconds=1.0,
        attempts=1,
        output="no",
        reason="exit code 1",
    )
    return from_command(event_context_of(), result, START).event


def of_bridge(what: str) -> CloudEvent:
    return own_event(event_context_of(), what).event


def after(name: PresetName, service: Service, *events: CloudEvent) -> None:
    """Tell a service of events; none is refused."""
    assert [str(talked(name, service, event)) for event in events] == ["None"] * len(
        events
    )


# -- what an event means -----------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "turn", "key"),
    [
        (published(), AlertAction.OPEN, KEY),
        (published("updated"), AlertAction.OPEN, KEY),
        (published("started"), AlertAction.OPEN, KEY),
        (published("completed"), AlertAction.RESOLVE, KEY),
        (published("cancelled"), AlertAction.RESOLVE, KEY),
        (published("ended"), AlertAction.RESOLVE, KEY),
        (approved(), AlertAction.ACKNOWLEDGE, KEY),
        (approved("already-started"), AlertAction.ACKNOWLEDGE, KEY),
        (command("failed"), AlertAction.OPEN, f"{KEY}/drain"),
        (command("succeeded"), AlertAction.RESOLVE, f"{KEY}/drain"),
        (command("failed", of_bridge("started")), AlertAction.OPEN, None),
        (of_bridge("imds-unreachable"), AlertAction.OPEN, None),
        (of_bridge("imds-recovered"), AlertAction.RESOLVE, None),
    ],
)
def test_event_has_its_place_in_an_alert(
    event: CloudEvent, turn: AlertAction, key: str | None
) -> None:
    found = alert(event)

    assert found is not None
    assert found.action is turn
    assert key is None or found.key == key


@pytest.mark.parametrize(
    "event",
    [
        approved("denied"),
        approved("relayed", event_id=None, event=None),
        command("skipped"),
        of_bridge("heartbeat"),
        replace(published(), extensions={}),
    ],
)
@pytest.mark.parametrize(
    "name",
    [
        *("pagerduty", "jira-service-management", "servicenow-event", "alertmanager"),
        *("servicenow-change", "grafana-irm", "incident-io"),
    ],
)
async def test_what_has_no_place_is_not_sent_and_counts_as_done(
    name: PresetName, event: CloudEvent, resources: Resources, inbox: Inbox
) -> None:
    async with opened_sink(resources, options(name, inbox.url)) as sink:
        await sink.deliver(event)
    preview = await sink_config(options(name, inbox.url)).preview(resources, event)

    assert inbox.received == []
    assert preview.head == ("nothing is sent: the service has no place for this event",)


def test_all_machines_and_spellings_mean_one_alert() -> None:
    spelled = (imds_event(EVENT_ID.lower()), imds_event(EVENT_ID.upper()))
    keys = [found.key for raw in spelled if (found := alert(published(raw=raw)))]

    assert keys == [KEY, KEY]


def test_severity_does_not_fall_with_a_later_step() -> None:
    """An update is INFO for the record; its alert is as severe as before."""
    events = [
        published(step, raw=imds_event(EventType="Reboot")) for step in TransitionKind
    ]

    assert {found.severity for e in events if (found := alert(e))} == {"ERROR"}


@pytest.mark.parametrize(
    ("fields", "severity"),
    [
        ({"EventType": "Preempt"}, "ERROR"),
        ({"EventType": "Freeze"}, "WARN"),
        ({"EventType": ["odd"]}, "WARN"),
        ({"EventType": "Reboot", "DurationInSeconds": 0}, "INFO"),
    ],
)
def test_severity_is_what_happens_to_machines(
    fields: dict[str, object], severity: str
) -> None:
    found = alert(published(raw={**imds_event(), **fields}))

    assert found is not None
    assert found.severity == severity


def test_long_event_id_is_hashed_and_names_are_counted() -> None:
    raw = imds_event("x" * 101, Resources=[f"vm-{n}" for n in range(25)])
    found = alert(published(raw=raw))

    assert found is not None
    assert found.key == hash32("X" * 101)
    assert found.details["Machines"].endswith("vm-19 and 5 more")


# -- PagerDuty ---------------------------------------------------------------------


def test_pagerduty_follows_the_life_of_an_event() -> None:
    service = pagerduty.PagerDuty()
    states = []
    for event in (
        published(),
        published("updated"),
        approved(),
        published("started"),
        published("ended"),
    ):
        after("pagerduty", service, event)
        states.append(service.alerts[KEY])

    assert states == ["triggered"] * 2 + ["acknowledged"] * 2 + ["resolved"]
    assert {one["dedup_key"] for one in service.taken} == {KEY}


async def test_key_of_pagerduty_is_in_the_body_and_shown_nowhere(
    resources: Resources,
) -> None:
    service = pagerduty.PagerDuty()
    async with (
        serving(service) as url,
        opened_sink(resources, options("pagerduty", url)) as sink,
    ):
        await sink.deliver(cloud_event())

    preview = await sink_config(options("pagerduty")).preview(resources, cloud_event())

    assert service.taken[0]["routing_key"] == pagerduty.KEY
    assert json.loads(preview.body)["routing_key"] == "<secret>"
    assert pagerduty.KEY not in "".join(preview.head)


async def test_secret_can_go_into_a_body_of_the_users_own(
    resources: Resources, inbox: Inbox
) -> None:
    table = {
        "type": "webhook",
        "url": inbox.url,
        "content_mode": "template",
        "template": '{"id": {{ event.id | tojson }} }',
        "auth": {"type": "body", "name": "token", "value": "S3CRET"},
    }
    async with opened_sink(resources, table) as sink:
        await sink.deliver(cloud_event())

    assert json.loads(inbox.received[0].body) == {
        "token": "S3CRET",
        "id": cloud_event().id,
    }
    assert "Authorization" not in inbox.received[0].headers


async def test_secret_has_no_place_in_a_body_that_is_no_object(
    resources: Resources, inbox: Inbox
) -> None:
    table = {
        "type": "webhook",
        "url": inbox.url,
        "content_mode": "template",
        "template": "[1]",
        "auth": {"type": "body", "name": "token", "value": "S3CRET"},
    }
    with pytest.raises(PermanentDeliveryError, match="JSON object"):
        async with opened_sink(resources, table) as sink:
            await sink.deliver(cloud_event())


@pytest.mark.parametrize(
    ("table", "faults"),
    [
        (
            {"auth": {"type": "body", "name": "a", "value": "x"}},
            [
                (
                    'auth.type: "body" needs content_mode = "template", or a preset '
                    "that has it"
                )
            ],
        ),
        (
            {"preset": "pagerduty"},
            ['auth: is missing: preset = "pagerduty" needs it'],
        ),
        (
            {"preset": "pagerduty", "auth": {"value": "x", "token": "y"}},
            ['auth.token: is for type = "bearer", but type is "body"'],
        ),
        (
            {
                "preset": "servicenow-change",
                "auth": {"username": "u", "password": "p"},
            },
            [
                (
                    'when.scope: must be "first": with preset = "servicenow-change", '
                    "only one VM may send each event"
                )
            ],
        ),
    ],
)
def test_configuration_says_what_is_wrong(
    table: dict[str, object], faults: list[str]
) -> None:
    found = config_faults({"type": "webhook", "url": "https://x.example", **table})

    assert found == faults


# -- Jira Service Management -------------------------------------------------------


def test_jira_follows_the_life_of_an_event() -> None:
    service = jira.Jira()
    states = []
    for event in (
        published(),
        approved(),
        published("started"),
        published("completed"),
    ):
        after("jira-service-management", service, event)
        states.append(service.alerts[KEY])

    assert states == ["open", "acknowledged", "acknowledged", "closed"]
    assert "ada@contoso.com" in service.taken[1]["note"]


async def test_alias_goes_into_the_path_over_http(resources: Resources) -> None:
    service = jira.Jira()
    odd = "a/b?c=ä#"
    events = [
        published(step, raw=imds_event(odd)) for step in ("scheduled", "completed")
    ]
    async with (
        serving(service) as url,
        opened_sink(resources, options("jira-service-management", url)) as sink,
    ):
        for event in events:
            await sink.deliver(event)

    assert service.alerts == {odd.upper(): "closed"}


# -- ServiceNow --------------------------------------------------------------------


def test_servicenow_has_an_alert_for_each_machine() -> None:
    service = servicenow.Events()
    before = imds_event(Resources=["web-0", "web-1"])
    now = imds_event(Resources=["web-1", "web-2"])

    after("servicenow-event", service, published(raw=before))
    after("servicenow-event", service, published("updated", raw=now, before=before))
    nodes = [(one["node"], one["severity"]) for one in service.taken[1]["records"]]
    after("servicenow-event", service, approved(), published("completed", raw=now))

    assert nodes == [("web-1", "4"), ("web-2", "4"), ("web-0", "0")]
    assert len(service.alerts) == 5, "web-0 to web-2, and the two of the approval"
    gone = {one["message_key"] for one in service.taken[3]["records"]}
    assert {service.alerts[key] for key in gone} == {"0"}


def test_approval_of_what_nobody_knows_is_no_event_for_servicenow() -> None:
    service = servicenow.Events()

    after("servicenow-event", service, approved(event=None))

    assert service.taken == []


def test_change_is_opened_and_closed_state_by_state() -> None:
    service = servicenow.Changes()
    steps = (
        published(),
        published("updated"),
        approved(),
        published("started"),
        published("completed"),
    )

    after("servicenow-change", service, *steps)

    (change,) = service.taken
    assert service.states == ["-2", "-1", "0", "3"]
    assert change["close_code"] == "successful"
    assert change["correlation_id"] == KEY
    assert change["start_date"] == "2026-03-02 12:15:00"
    assert change["end_date"] == "2026-03-02 12:15:05"


@pytest.mark.parametrize(
    ("step", "state", "code"),
    [("cancelled", "4", None), ("ended", "3", "successful_issues")],
)
def test_change_ends_as_the_event_does(step: str, state: str, code: str | None) -> None:
    service = servicenow.Changes()

    after("servicenow-change", service, published(), published(step), published(step))

    (change,) = service.taken
    assert (change["state"], change.get("close_code")) == (state, code)


async def test_retry_after_a_lost_answer_makes_no_second_change(
    resources: Resources,
) -> None:
    service = servicenow.Changes(loses=1)
    async with (
        serving(service) as url,
        opened_sink(resources, options("servicenow-change", url)) as sink,
    ):
        with pytest.raises(TransientDeliveryError):
            await sink.deliver(published())
        await sink.deliver(published())
        await sink.deliver(published("completed"))

    assert [change["state"] for change in service.taken] == ["3"]
    assert not sink_config(options("servicenow-change")).repeats
    assert sink_config(options("pagerduty")).repeats


def test_step_is_taken_up_where_an_attempt_stopped() -> None:
    """The attempt broke off between two states: no state is entered twice."""
    service = servicenow.Changes()
    after("servicenow-change", service, published())
    next(iter(service.changes.values()))["state"] = "0"

    after("servicenow-change", service, published("completed"))

    assert service.states == ["3"]


def test_event_that_comes_back_has_a_change_of_its_own() -> None:
    service = servicenow.Changes()

    after("servicenow-change", service, published(), published("ended"), published())

    assert [change["state"] for change in service.taken] == ["3", "-5"]


def test_no_change_is_made_by_what_ends_or_by_commands() -> None:
    service = servicenow.Changes()

    after("servicenow-change", service, published("completed"), command("failed"))

    assert service.taken == []


def test_odd_times_and_durations_make_a_plan_all_the_same() -> None:
    service = servicenow.Changes()
    raw = imds_event(NotBefore="soon", DurationInSeconds=-1)

    after("servicenow-change", service, published(raw=raw))

    (change,) = service.taken
    assert change["start_date"] == "2026-03-02 12:00:00"
    assert change["end_date"] == "2026-03-02 13:00:00"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"<html>", TransientDeliveryError),
        (b'{"result": {}}', PermanentDeliveryError),
        (b'{"result": [{"sys_id": "a"}, {"state": "-1"}]}', PermanentDeliveryError),
        (b"{}", PermanentDeliveryError),
    ],
)
def test_no_change_is_made_where_the_search_says_nothing(
    body: bytes, kind: type[Exception]
) -> None:
    """Else each of these answers would make one more change."""
    talk = PRESETS["servicenow-change"].talk
    assert talk is not None
    requests = talk(published(), lambda _: None, START)
    first = advanced(requests, None)
    last = advanced(requests, Answer(status=200, body=body, retry_after=None))

    assert isinstance(first, Call)
    assert first.method == "GET"
    assert isinstance(last, kind)


def test_state_may_be_written_plainly_or_be_missing() -> None:
    talk = PRESETS["servicenow-change"].talk
    assert talk is not None
    body = (
        b'{"result": [{"sys_id": "a", "state": "-1"}, {"sys_id": "b"},'
        b' {"sys_id": "c", "state": "1e999"}]}'
    )
    requests = talk(published("updated"), lambda _: None, START)
    advanced(requests, None)
    answer = Answer(status=200, body=body, retry_after=None)
    calls = [advanced(requests, answer) for _ in range(3)]

    assert [c.path for c in calls if isinstance(c, Call)] == [
        f"{servicenow.CHANGES}/a",
        f"{servicenow.CHANGES}/b",
        f"{servicenow.CHANGES}/c",
    ]


def test_refusal_of_a_state_is_reported() -> None:
    service = servicenow.Changes()
    after("servicenow-change", service, published())
    next(iter(service.changes.values()))["state"] = "-4"  # somebody assesses it

    error = talked("servicenow-change", service, published("started"))

    assert isinstance(error, PermanentDeliveryError)


# -- Datadog -----------------------------------------------------------------------


def test_datadog_groups_the_steps_and_notifies_nobody() -> None:
    service = datadog.Datadog()
    raw = imds_event(Description="@pagerduty @all", Resources=["web 0", "@web-1"])

    after(
        "datadog",
        service,
        published(raw=raw),
        published("completed", raw=raw),
        approved(),
    )

    kinds = [one["alert_type"] for one in service.taken]
    assert {one["aggregation_key"] for one in service.taken} == {KEY}
    assert kinds == ["warning", "success", "info"]
    assert "vm:web_0" in service.taken[0]["tags"]


@pytest.mark.parametrize(("hours", "is_sent"), [(1, True), (18, False)])
def test_datadog_is_told_no_time_that_it_refuses(*, hours: int, is_sent: bool) -> None:
    talk = PRESETS["datadog"].talk
    assert talk is not None
    now = START + timedelta(hours=hours)
    call = advanced(talk(published(), lambda _: None, now), None)

    assert isinstance(call, Call)
    assert ("date_happened" in json.loads(call.body)) is is_sent


# -- Alertmanager, Grafana IRM, incident.io ----------------------------------------


def test_alert_fires_until_the_event_is_gone() -> None:
    service = alerting.Alertmanager(now=START)
    firing = []
    for event in (
        published(),
        approved(),
        published("started"),
        published("completed"),
    ):
        after("alertmanager", service, event)
        firing.append(len(service.firing()))

    assert firing == [1, 1, 1, 0]
    assert service.taken[1][0]["annotations"]["approved_by"] == "ada@contoso.com"


def test_old_not_before_does_not_end_an_alert_before_it_starts() -> None:
    service = alerting.Alertmanager(now=START)
    old = imds_event(NotBefore="Mon, 02 Feb 2026 12:00:00 GMT")

    after("alertmanager", service, published("started", raw=old))

    assert len(service.firing()) == 1


def test_not_before_of_another_age_is_none() -> None:
    """Of the property test: such a year cannot be written, or leads beyond 9999."""
    years = ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z")
    found = [begins(published(raw=imds_event(NotBefore=year))) for year in years]

    assert found == [START, START]


def test_alert_whose_type_changes_ends_and_another_begins() -> None:
    service = alerting.Alertmanager(now=START)
    freeze, reboot = imds_event(), imds_event(EventType="Reboot")

    after("alertmanager", service, published(raw=freeze))
    after("alertmanager", service, published("updated", raw=reboot, before=freeze))
    firing = service.firing()
    after("alertmanager", service, published("updated", raw=reboot, before=reboot))

    assert [one["event_type"] for one in firing] == ["Reboot"]
    assert len(service.taken[-1]) == 1


def test_approval_of_what_nobody_knows_is_no_alert() -> None:
    service = alerting.Alertmanager()

    after("alertmanager", service, approved(event=None))

    assert service.taken == []


def test_group_of_grafana_and_alert_of_incident_io_end_with_the_event() -> None:
    grafana, incident = alerting.Grafana(), alerting.IncidentIo()
    states = []
    for event in (published(), approved(), published("cancelled")):
        after("grafana-irm", grafana, event)
        after("incident-io", incident, event)
        states.append((grafana.groups[KEY], incident.alerts[KEY]))

    assert states == [("alerting", "firing")] * 2 + [("ok", "resolved")]


def test_grafana_takes_three_hundred_alerts_in_five_minutes() -> None:
    service = alerting.Grafana(taken=[{}] * 300)

    assert isinstance(
        talked("grafana-irm", service, published()), TransientDeliveryError
    )


@pytest.fixture
async def alertmanager(tmp_path: Path) -> AsyncIterator[str]:
    """A real Alertmanager; yields its URL."""
    config = tmp_path / "alertmanager.yml"
    config.write_text("route: {receiver: none}\nreceivers: [{name: none}]\n")
    port = free_port()
    with running(config, tmp_path / "data", port):
        yield f"http://127.0.0.1:{port}"


def running(config: Path, data: Path, port: int) -> "Running":
    return Running(
        [
            str(ALERTMANAGER),
            f"--config.file={config}",
            f"--storage.path={data}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--cluster.listen-address=",
        ]
    )


class Running:
    """A process that ends with the block."""

    def __init__(self, command: list[str]) -> None:
        self.command = command

    def __enter__(self) -> None:
        self.process = subprocess.Popen(  # noqa: S603 - of this test
            self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(10)


async def firing_at(url: str) -> list[str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{url}/api/v2/alerts?active=true") as answer,
    ):
        return [one["labels"]["alert_key"] for one in await answer.json()]


async def until_ready(url: str) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                await firing_at(url)
            except aiohttp.ClientError:
                await asyncio.sleep(0.1)
            else:
                return


@pytest.mark.skipif(ALERTMANAGER is None, reason="no Alertmanager is installed")
async def test_real_alertmanager_fires_and_ends(
    alertmanager: str, resources: Resources
) -> None:
    await until_ready(alertmanager)
    now = datetime.now(UTC)
    table = options("alertmanager", alertmanager)
    firing = []
    async with opened_sink(resources, table) as sink:
        for event in (
            published(at=now),
            published("completed", at=now + timedelta(seconds=20)),
        ):
            await sink.deliver(event)
            firing.append(await firing_at(alertmanager))

    assert firing == [[KEY], []]


# -- alerts that Alertmanager has forgotten ------------------------------------------


class Restarts:
    """An Alertmanager that can be restarted, which makes it forget everything."""

    def __init__(self) -> None:
        self.here = alerting.Alertmanager()
        self.meanwhile: list[Callable[[], Awaitable[None]]] = []

    async def answer(self, request: web.Request) -> web.Response:
        post = Post(
            method=request.method,
            path=request.path,
            headers=request.headers,
            body=await request.read(),
        )
        while self.meanwhile:
            await self.meanwhile.pop()()
        reply = self.here.answer(post)
        return web.Response(status=reply.status, body=reply.body)


@dataclass
class Reminded:
    """A sink that reminds such an Alertmanager, by a clock of the test."""

    manager: Restarts
    clock: FakeClock
    sink: RemindingWebhook
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def minutes(self, count: float) -> None:
        """Let time pass until all reminders are answered."""
        self.clock.pass_by(count * 60)
        self.manager.here.now = self.clock.now()
        asked = len(self.clock.waits)
        async with asyncio.timeout(60):
            while len(self.clock.waits) == asked:
                await asyncio.sleep(0.01)

    @property
    def firing(self) -> list[str]:
        return [one["alert_key"] for one in self.manager.here.firing()]


@pytest.fixture
async def reminded(resources: Resources) -> AsyncIterator[Reminded]:
    manager, clock = Restarts(), FakeClock()
    app = web.Application()
    app.router.add_post("/{path:.*}", manager.answer)
    server = TestServer(app)
    await server.start_server()
    given = msgspec.structs.replace(resources, clock=clock)
    table = options("alertmanager", f"http://127.0.0.1:{server.port}")
    async with opened_sink(given, table) as sink:
        assert isinstance(sink, RemindingWebhook)
        made = Reminded(manager, clock, sink)
        task = asyncio.create_task(sink.remind(made.stop))
        await asyncio.sleep(0)
        yield made
        made.stop.set()
        await task
    await server.close()


async def test_restarted_alertmanager_knows_its_alerts_again(
    reminded: Reminded,
) -> None:
    await reminded.sink.deliver(published())
    await reminded.sink.deliver(command("failed"))
    reminded.manager.here = alerting.Alertmanager()

    await reminded.minutes(4)

    assert sorted(reminded.firing) == [KEY, f"{KEY}/drain"]


async def test_what_has_ended_is_not_sent_again(reminded: Reminded) -> None:
    await reminded.sink.deliver(published())
    await reminded.sink.deliver(published("completed"))
    await reminded.minutes(4)
    assert reminded.firing == []
    assert len(reminded.manager.here.taken) == 2

    await reminded.sink.deliver(published())
    await reminded.minutes(30 * 60)
    assert reminded.firing == [], "a day after NotBefore it is over"


async def test_alert_that_ends_during_a_reminder_stays_ended(
    reminded: Reminded,
) -> None:
    """The reminder is answered last, so Alertmanager takes it for the news."""
    await reminded.sink.deliver(published())

    async def ends() -> None:
        await reminded.sink.deliver(published("completed"))

    reminded.manager.meanwhile.append(ends)
    await reminded.minutes(4)

    assert reminded.firing == []


async def test_reminder_that_fails_is_made_again(
    reminded: Reminded, caplog: pytest.LogCaptureFixture
) -> None:
    await reminded.sink.deliver(published())
    reminded.manager.here = alerting.Alertmanager(status=503)
    await reminded.minutes(4)
    await reminded.minutes(4)
    assert [one.message for one in caplog.records].count(
        "open alerts not sent again"
    ) == 1

    reminded.manager.here.status = None
    await reminded.minutes(4)
    assert reminded.firing == [KEY]


@pytest.mark.skipif(ALERTMANAGER is None, reason="no Alertmanager is installed")
async def test_real_alertmanager_is_reminded(
    alertmanager: str, resources: Resources
) -> None:
    await until_ready(alertmanager)
    clock, stop = FakeClock(datetime.now(UTC)), asyncio.Event()
    given = msgspec.structs.replace(resources, clock=clock)
    key, kept = PRESETS["alertmanager"].standing.changed(published(at=clock.now()))  # type: ignore[union-attr, misc]  # it has one
    await given.memory.keep(key, kept)  # by an earlier run, to an earlier Alertmanager
    async with opened_sink(given, options("alertmanager", alertmanager)) as sink:
        assert isinstance(sink, RemindingWebhook)
        task = asyncio.create_task(sink.remind(stop))
        await asyncio.sleep(0)
        clock.pass_by(240)
        async with asyncio.timeout(60):
            while await firing_at(alertmanager) != [KEY]:
                await asyncio.sleep(0.05)
        stop.set()
        await task


# -- what a preview shows ----------------------------------------------------------


async def test_preview_shows_each_request_and_the_last_body(
    resources: Resources,
) -> None:
    preview = await sink_config(options("servicenow-change")).preview(
        resources, published()
    )

    assert preview.head[0].startswith("GET http://127.0.0.1:9 /api/sn_chg_rest/change?")
    assert preview.head[1] == "POST http://127.0.0.1:9"
    assert "Authorization: Basic <secret>" in preview.head
    assert json.loads(preview.body)["correlation_id"] == KEY


@pytest.mark.parametrize("name", [n for n in PRESETS if PRESETS[n].talk])
async def test_unknown_place_parks_the_sink(
    name: PresetName, resources: Resources, inbox: Inbox
) -> None:
    inbox.status = 404
    with pytest.raises(RefusedDeliveryError):
        async with opened_sink(resources, options(name, inbox.url)) as sink:
            await sink.deliver(published())

    assert inbox.received[0].path.partition("?")[0] in {
        WAYS[name].path,
        servicenow.CHANGES,
    }

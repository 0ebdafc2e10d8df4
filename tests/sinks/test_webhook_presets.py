"""Presets: each against a receiver that enforces what its service documents."""

import gzip
import json
import re
import sys
import tomllib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from aiohttp import web
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from bridge.cli.main import main
from bridge.events.build import from_document, from_outcome
from bridge.events.cloudevent import MAX_BYTES, CloudEvent
from bridge.events.samples import one_of_each
from bridge.events.vocabulary import TransitionKind
from bridge.foundation.errors import (
    ConfigError,
    DeliveryError,
    PermanentDeliveryError,
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
    install_command,
)
from bridge.sinks.base import Resources
from bridge.sinks.webhook.body import Shape
from bridge.sinks.webhook.presets import eventhubs
from bridge.sinks.webhook.presets.registry import PRESETS, PresetName
from bridge.sinks.webhook.sink import WebhookSinkConfig
from tests.receivers import azure, elastic, splunk, standard
from tests.receivers.serving import Service, serving
from tests.sinks.preset_ways import (
    NAMES,
    PAGE,
    ROOT,
    WAYS,
    example,
    options,
    sent,
    talked,
    with_table,
)
from tests.support.builders import document, event_context_of, imds_event
from tests.support.example_events import outcome, published, transition
from tests.support.fakes import START
from tests.support.sink_fixtures import (
    Inbox,
    cloud_event,
    config_faults,
    opened_sink,
    sink_config,
)
from tests.support.strategies import documents

GOLDEN = ROOT / "tests" / "data" / "presets"
SAS = azure.SAS


async def deliver(
    resources: Resources,
    service: Service,
    table: Mapping[str, object],
    event: CloudEvent | None = None,
) -> None:
    """Deliver to a service over HTTP; ``table`` has a URL without a host."""
    async with serving(service) as url:
        there = {**table, "url": str(table["url"]).replace("http://127.0.0.1:9", url)}
        async with opened_sink(resources, there) as sink:
            await sink.deliver(event or cloud_event())


# -- what is sent ------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
async def test_service_takes_what_the_preset_sends(
    name: PresetName, resources: Resources
) -> None:
    service = WAYS[name].service()
    events = list(one_of_each(lifecycle=True))

    async with (
        serving(service) as url,
        opened_sink(resources, options(name, url)) as it,
    ):
        for event in events:
            await it.deliver(event)

    assert 0 < len(service.taken) <= len(events)
    assert len(service.taken) == len(events) or PRESETS[name].talk is not None


@pytest.mark.parametrize("name", NAMES)
def test_body_is_the_golden_one(name: PresetName) -> None:
    path = GOLDEN / f"{name}.json"

    assert sent(name, golden_event()) == json.loads(path.read_text(encoding="utf-8"))


def test_elastic_ends_with_a_line_break() -> None:
    _, body = Shape(preset="elastic").renderer()(golden_event())

    assert body.endswith(b"\n")


def golden_event() -> CloudEvent:
    return published(transition(unobserved=3)).event


def test_receiver_sees_what_the_event_says(resources: Resources) -> None:
    """One field of each body, so that the receivers do not take just anything."""
    event = cloud_event()
    rendered = {n: r for n in NAMES if (r := PRESETS[n].render) is not None}
    found = {name: render(event)[1].decode() for name, render in rendered.items()}

    assert json.loads(found["splunk-hec"])["event"]["id"] == event.id
    assert json.loads(found["splunk-hec"])["time"] == 1795255200.0
    assert json.loads(found["elastic"].splitlines()[1])["event"]["id"] == event.id
    assert json.loads(found["sentinel"])[0]["CloudEventId"] == event.id
    assert json.loads(found["eventgrid"])[0]["id"] == event.id
    assert json.loads(found["standard-webhooks"])["data"] == event.data


@pytest.mark.parametrize("name", ["splunk-hec", "elastic", "sentinel"])
async def test_compressed_body_is_taken_by_who_is_known_to(
    name: PresetName, resources: Resources, inbox: Inbox
) -> None:
    service = WAYS[name].service()

    await deliver(resources, service, options(name, gzip="1B"))

    assert len(service.taken) == 1


@pytest.mark.parametrize("size", ["100KB", "1B"])
async def test_only_large_bodies_are_compressed(
    size: str, resources: Resources
) -> None:
    seen = []

    async def keep(request: web.BaseRequest) -> web.Response:
        seen.append((request.headers.get("Content-Encoding"), await request.read()))
        return web.Response()

    server = web.ServerRunner(web.Server(keep, auto_decompress=False))
    await server.setup()
    await web.TCPSite(server, "127.0.0.1", 0).start()
    url = "http://{}:{}".format(*server.addresses[0][:2])
    table = {"type": "webhook", "url": url, "gzip": size}
    async with opened_sink(resources, table) as sink:
        await sink.deliver(cloud_event())
    await server.cleanup()

    ((encoding, body),) = seen
    is_small = size == "100KB"
    assert encoding == (None if is_small else "gzip")
    assert (body if is_small else gzip.decompress(body)) == cloud_event().to_json()


# -- whatever IMDS says ------------------------------------------------------------

KINDS = st.sampled_from(TransitionKind)
TEXTS = st.none() | st.text(max_size=40)
LONG = 'x"\\\n\x00😀{{DATE(2026-01-01T00:00:00Z)}}<at>**b**' * 600


@st.composite
def odd_cloud_events(draw: st.DrawFn) -> CloudEvent:
    """Return what the bridge would tell of odd events, approvals and documents."""
    doc = draw(documents())
    found = list(doc.events.values()) or list(document(imds_event()).events.values())
    event = draw(st.sampled_from(found))
    kind = draw(st.sampled_from(["transition", "outcome", "document"]))
    if kind == "transition":
        step = transition(
            draw(KINDS),
            event,
            draw(st.none() | st.sampled_from(found)),
            changes=tuple(draw(st.lists(st.text(max_size=9), max_size=3))),
            announced=None,
            unobserved=None,
        )
        return published(step, incarnation=doc.incarnation).event
    if kind == "outcome":
        texts = {key: draw(TEXTS) for key in ("messageId", "approvedBy", "reason")}
        found_outcome = outcome(
            "denied",
            event_id=event.event_id,
            event=draw(st.none() | st.just(event)),
            imds_status=None,
            confirmed=None,
            reason=draw(TEXTS),
            request={**texts, "enqueuedAt": None, "expiresAt": None},
        )
        return from_outcome(event_context_of(), found_outcome, START).event
    return from_document(
        event_context_of(), doc, previous_incarnation=None, observed_at=START, repeats=0
    ).event


def error_of(name: PresetName, event: CloudEvent) -> DeliveryError | None:
    service: Service = WAYS[name].service()
    return talked(name, service, event)


@given(odd_cloud_events())
@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
def test_no_service_refuses_an_odd_event(event: CloudEvent) -> None:
    found = {name: error_of(name, event) for name in NAMES}

    assert {name: str(e) for name, e in found.items() if e} == {}


def deep(levels: int) -> object:
    return {"\0": [deep(levels - 1)]} if levels else "deep"


@pytest.mark.parametrize(
    "raw",
    [
        imds_event(Description=LONG, Resources=[LONG] * 3),
        imds_event(Description=LONG),
        imds_event(EventType=LONG, EventSource=LONG, EventStatus=LONG, Next=LONG),
        imds_event(
            EventId=LONG[:900], Resources=[f"{LONG[:20]}{n}" for n in range(99)]
        ),
        imds_event(Description=None, Resources=deep(25), Deep=deep(25)),
        imds_event(Resources=["", " "]),
    ],
    ids=["long", "long text", "all long", "long id", "deep", "no name"],
)
def test_no_service_refuses_what_is_long_deep_or_empty(raw: dict[str, object]) -> None:
    (event,) = document(raw).events.values()
    step = transition("started", event, event, changes=(LONG[:100],), unobserved=0)
    shown = published(step, incarnation=2**64 - 1)
    found = {name: error_of(name, shown.event) for name in NAMES}

    assert len(shown.event.to_json()) <= MAX_BYTES
    assert {name: str(e) for name, e in found.items() if e} == {}


@pytest.mark.parametrize("event_id", ["x" * 129, "ö", "a\nb"])
def test_partition_of_an_odd_event_id_is_its_hash(event_id: str) -> None:
    headers = eventhubs.partition(
        replace(cloud_event(), subject=event_id, extensions={})
    )

    (key,) = json.loads(headers["BrokerProperties"]).values()
    assert re.fullmatch("[0-9a-f]{32}", key)


def test_what_concerns_no_event_may_go_to_any_partition() -> None:
    event = replace(cloud_event(), subject=None, extensions={})

    assert eventhubs.partition(event) == {}


# -- what is answered --------------------------------------------------------------

T, R, P = TransientDeliveryError, RefusedDeliveryError, PermanentDeliveryError


@pytest.mark.parametrize(
    ("code", "kind", "reason"),
    [
        (1, R, Reason.UNAUTHORIZED),
        (4, R, Reason.UNAUTHORIZED),
        (7, R, Reason.UNAUTHORIZED),
        (14, R, Reason.UNAUTHORIZED),
        (5, P, Reason.REJECTED),
        (6, P, Reason.REJECTED),
        (12, P, Reason.REJECTED),
        (13, P, Reason.REJECTED),
        (15, P, Reason.REJECTED),
        (8, T, Reason.SERVER),
        (9, T, Reason.SERVER),
    ],
)
async def test_codes_of_hec_are_sorted(
    code: int, kind: type[DeliveryError], reason: Reason, resources: Resources
) -> None:
    with pytest.raises(DeliveryError, match=f"code {code}|answered 50") as caught:
        await deliver(resources, splunk.Splunk(says=code), options("splunk-hec"))

    assert (type(caught.value), caught.value.reason) == (kind, reason)


async def test_token_with_acknowledgement_needs_a_channel(
    resources: Resources,
) -> None:
    channel = {"x-splunk-request-channel": "13f56399-bd52-4150-9748-7190aae1ff21"}
    service = splunk.Splunk(uses_ack=True)

    with pytest.raises(RefusedDeliveryError, match="x-splunk-request-channel"):
        await deliver(resources, service, options("splunk-hec"))
    await deliver(resources, service, options("splunk-hec", headers=channel))

    assert len(service.taken) == 1


@pytest.mark.parametrize(
    ("item", "kind", "reason"),
    [
        (429, T, Reason.THROTTLED),
        (503, T, Reason.SERVER),
        (404, R, Reason.NOT_FOUND),
        (403, R, Reason.UNAUTHORIZED),
        (400, P, Reason.REJECTED),
    ],
)
async def test_errors_of_an_item_are_found_behind_the_200(
    item: int, kind: type[DeliveryError], reason: Reason, resources: Resources
) -> None:
    with pytest.raises(DeliveryError, match=r"the item: \w+_exception") as caught:
        await deliver(resources, elastic.Elastic(item=item), options("elastic"))

    assert (type(caught.value), caught.value.reason) == (kind, reason)


async def test_repeat_is_a_success_although_it_conflicts(resources: Resources) -> None:
    service = elastic.Elastic()

    await deliver(resources, service, options("elastic"))
    await deliver(resources, service, options("elastic"))

    assert list(service.taken) == [cloud_event().id]


@pytest.mark.parametrize("name", ["splunk-hec", "elastic"])
@pytest.mark.parametrize(
    ("body", "kind"),
    [(b"<html>login</html>", T), (b"[]", T), (b"x" * 70_000, P)],
)
async def test_answer_that_is_none_of_the_service_is_no_success(
    name: PresetName,
    body: bytes,
    kind: type[DeliveryError],
    resources: Resources,
    inbox: Inbox,
) -> None:
    inbox.answer = body
    with pytest.raises(DeliveryError) as caught:
        async with opened_sink(resources, options(name, inbox.url)) as sink:
            await sink.deliver(cloud_event())

    assert type(caught.value) is kind


@pytest.mark.parametrize(
    "body",
    [
        b'{"errors": true}',
        b'{"errors": true, "items": []}',
        b'{"errors": true, "items": [{"create": {"status": "no"}}]}',
    ],
)
async def test_bulk_that_says_nothing_of_its_item_is_tried_again(
    body: bytes, resources: Resources, inbox: Inbox
) -> None:
    inbox.answer = body
    with pytest.raises(TransientDeliveryError):
        async with opened_sink(resources, options("elastic", inbox.url)) as sink:
            await sink.deliver(cloud_event())


@pytest.mark.parametrize(
    "kind",
    [
        "a <secret> exception",
        elastic.KEY,
        "x" * 5000 + "_exception",
        "\u0430\u0431_exception",
        7,
    ],
)
async def test_error_repeats_nothing_of_what_elasticsearch_quotes(
    kind: object, resources: Resources, inbox: Inbox
) -> None:
    error = {"type": kind, "reason": "Preview: 'S3CRET'"}
    items = [{"create": {"status": 400, "error": error}}]
    inbox.answer = json.dumps({"errors": True, "items": items}).encode()
    with pytest.raises(PermanentDeliveryError) as caught:
        async with opened_sink(resources, options("elastic", inbox.url)) as sink:
            await sink.deliver(cloud_event())

    assert str(caught.value).endswith("answered 400: the item")


async def test_code_of_hec_that_nobody_knows_is_tried_again(
    resources: Resources, inbox: Inbox
) -> None:
    inbox.answer = b'{"text": "new", "code": 99}'
    with pytest.raises(TransientDeliveryError, match="with code 99"):
        async with opened_sink(resources, options("splunk-hec", inbox.url)) as sink:
            await sink.deliver(cloud_event())


@pytest.mark.parametrize("name", [n for n in NAMES if WAYS[n].statuses])
async def test_statuses_of_the_service_are_sorted(
    name: PresetName, resources: Resources
) -> None:
    kinds = {"T": T, "R": R, "P": P}
    statuses = {status: kinds[kind] for status, kind in WAYS[name].statuses.items()}
    found, service = {}, WAYS[name].service()
    async with (
        serving(service) as url,
        opened_sink(resources, options(name, url)) as it,
    ):
        for status in statuses:
            service.status = status
            with pytest.raises(DeliveryError) as caught:
                await it.deliver(cloud_event())
            found[status] = type(caught.value)

    assert found == statuses


async def test_sentinel_says_when_to_come_again(resources: Resources) -> None:
    service = azure.Sentinel(status=429, retry_after="7")

    with pytest.raises(TransientDeliveryError) as caught:
        await deliver(resources, service, options("sentinel"))

    assert caught.value.retry_after == 7


@pytest.mark.parametrize("name", [n for n in NAMES if WAYS[n].wrong])
async def test_wrong_credentials_refuse_the_sink(
    name: PresetName, resources: Resources
) -> None:
    table = options(name) | dict(WAYS[name].wrong or {})
    with pytest.raises(RefusedDeliveryError) as caught:
        await deliver(resources, WAYS[name].service(), table)

    assert caught.value.reason is Reason.UNAUTHORIZED
    assert "wrong" not in str(caught.value).replace("key is wrong", "")


# -- with a token of Entra ---------------------------------------------------------


@pytest.fixture
async def scopes(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[str]]:
    """Give out the receivers' token, and tell for what it was asked for."""
    asked: list[str] = []

    async def answer(request: web.BaseRequest) -> web.Response:
        asked.append(request.query["resource"])
        return web.json_response(
            {
                "access_token": azure.TOKEN,
                "expires_in": "86400",
                "expires_on": "4102444800",
                "resource": request.query["resource"],
                "token_type": "Bearer",
            }
        )

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = "http://{}:{}".format(*runner.addresses[0][:2])
    monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", url)
    yield asked
    await runner.cleanup()


@pytest.mark.parametrize(
    ("name", "auth", "scope"),
    [
        ("sentinel", None, "https://monitor.azure.com"),
        ("eventhubs", None, "https://eventhubs.azure.net"),
        ("eventgrid", {"type": "entra"}, "https://eventgrid.azure.net"),
    ],
)
async def test_identity_of_the_vm_is_enough(
    name: PresetName,
    auth: object,
    scope: str,
    scopes: list[str],
    resources: Resources,
) -> None:
    service = WAYS[name].service()
    table = {k: v for k, v in options(name).items() if k not in {"auth", "headers"}}

    await deliver(resources, service, table | ({"auth": auth} if auth else {}))

    assert scopes == [scope]
    assert len(service.taken) == 1


# -- what the user says comes first ------------------------------------------------


async def test_template_takes_the_place_of_the_body_and_nothing_else(
    resources: Resources,
) -> None:
    service = splunk.Splunk()
    text = '{"event": {"own": {{ event.id | tojson }} }}'
    own = {"content_mode": "template", "template": text}

    await deliver(resources, service, options("splunk-hec", **own))

    assert service.taken == [{"event": {"own": cloud_event().id}}]


async def test_partition_goes_with_a_body_of_the_users_own(
    resources: Resources,
) -> None:
    service = azure.EventHub()
    own = {"content_mode": "template", "template": "{{ event.id | tojson }}"}

    await deliver(resources, service, options("eventhubs", **own))

    ((key, _),) = service.taken
    assert key == cloud_event().subject


async def test_event_grid_takes_one_event_as_well_as_a_batch(
    resources: Resources,
) -> None:
    service = azure.EventGrid()

    await deliver(resources, service, options("eventgrid", content_mode="structured"))

    assert service.taken[0]["id"] == cloud_event().id


async def test_rule_of_the_user_takes_the_place_of_the_presets(
    resources: Resources, inbox: Inbox
) -> None:
    inbox.answer = b"OK from a relay that speaks no HEC"
    table = options("splunk-hec", inbox.url, success={"status": [200]})
    async with opened_sink(resources, table) as sink:
        await sink.deliver(cloud_event())

    assert len(inbox.received) == 1


async def test_array_is_plain_json_of_one_event(
    resources: Resources, inbox: Inbox
) -> None:
    table = {"type": "webhook", "url": inbox.url, "content_mode": "array"}
    async with opened_sink(resources, table) as sink:
        await sink.deliver(cloud_event())

    (request,) = inbox.received
    assert request.headers["Content-Type"] == "application/json"
    assert json.loads(request.body) == [json.loads(cloud_event().to_json())]


async def test_template_file_that_went_away_stops_the_start(
    resources: Resources, tmp_path: Path
) -> None:
    body = tmp_path / "body.j2"
    body.write_text("{{ event.id | tojson }}")
    table = {"content_mode": "template", "template": f"file:{body}"}
    config = sink_config({"type": "webhook", "url": "https://x.example", **table})
    body.unlink()

    with pytest.raises(ConfigError, match=r"sinks\.it\.template: .* cannot be read"):
        async with config.open(resources):
            pass


@pytest.mark.parametrize("name", NAMES)
async def test_preview_shows_the_body_and_no_secret(
    name: PresetName, resources: Resources
) -> None:
    config = sink_config(options(name))
    assert isinstance(config, WebhookSinkConfig)

    preview = await config.preview(resources, cloud_event())

    shown = "\n".join((*preview.head, preview.body.decode()))
    secrets = [
        *WAYS[name].environ.values(),
        *WAYS[name].headers.values(),
        "sig=",
        "v1,",
    ]
    assert [value for value in secrets if value in shown] == []
    if (render := PRESETS[name].render) is not None:
        assert preview.body == render(cloud_event())[1]


# -- configuration -----------------------------------------------------------------


def quoted(name: str) -> str:
    return f'"{name}"'


@pytest.mark.parametrize(
    ("table", "faults"),
    [
        (
            {"preset": "splunk"},
            [
                (
                    f"preset: must be one of {', '.join(map(quoted, NAMES))}; "
                    "did you mean 'splunk-hec'?"
                )
            ],
        ),
        (
            {"preset": "splunk-hec"},
            ['auth: is missing: preset = "splunk-hec" needs it'],
        ),
        ({"preset": "eventgrid"}, ['auth: is missing: preset = "eventgrid" needs it']),
        ({"preset": "eventgrid", "headers": {"aeg-sas-key": "x"}}, []),
        ({"preset": "splunk-hec", "headers": {"Authorization": "x"}}, []),
        (
            {"preset": "standard-webhooks"},
            ['signature: is missing: preset = "standard-webhooks" needs its secrets'],
        ),
        (
            {"preset": "teams", "content_mode": "structured"},
            [
                (
                    'content_mode: preset = "teams" makes its own body; '
                    'allowed are "template"'
                )
            ],
        ),
        (
            {"preset": "teams", "gzip": "1KB"},
            ['gzip: preset = "teams" is not known to accept compressed bodies'],
        ),
        (
            {"gzip": "1KB", "signature": {"secrets": [standard.SECRET]}},
            ["gzip: leave it out: only plain bodies are signed"],
        ),
        (
            {"template": "x"},
            ['template: is for content_mode = "template"'],
        ),
        (
            {"content_type": "text/plain"},
            ['content_type: is for content_mode = "template"'],
        ),
        (
            {"content_mode": "template"},
            ['template: is missing: content_mode = "template" needs it'],
        ),
        (
            {"content_mode": "template", "template": "x", "content_type": "text"},
            ['content_type: must be a media type such as "application/json"'],
        ),
        (
            {"content_mode": "template", "template": "\n{% if %}"},
            ["template: line 2: Expected an expression, got 'end of statement block'"],
        ),
        (
            {
                "content_mode": "template",
                "template": "{{ event.data.transition | tojson }}",
            },
            [
                (
                    "template: line 1: 'dict object' has no attribute 'transition' "
                    "(tried on sebridge.startrequest.invalid.v1)"
                )
            ],
        ),
        (
            {
                "content_mode": "template",
                "template": '{"what": "{{ event.data.event.Description }}"}',
                "when": {"lifecycle": False},
            },
            [
                (
                    "template: it does not render to JSON: unexpected character, "
                    "expected ',' or '}': line 1 column 17 (char 16); "
                    "put values in with | tojson "
                    "(tried on sebridge.scheduledevent.scheduled.v1)"
                )
            ],
        ),
        (
            {
                "content_mode": "template",
                "content_type": "text/plain; charset=utf-8",
                "template": "{{ event.data.reporter.vmName }} {{ event.type }}",
            },
            [],
        ),
    ],
)
def test_configuration_says_what_is_wrong(
    table: Mapping[str, object], faults: list[str]
) -> None:
    found = config_faults({"type": "webhook", "url": "https://x.example", **table})

    assert found == faults


def test_template_without_jinja_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    table = {"content_mode": "template", "template": "{# compiled nowhere #}x"}

    (fault,) = config_faults({"type": "webhook", "url": "https://x.example", **table})

    assert fault.startswith("content_mode: ")
    assert install_command("template") in fault


def test_each_preset_has_an_example_a_golden_body_and_a_receiver() -> None:
    folder = ROOT / "config" / "presets"
    assert {path.stem for path in folder.iterdir()} == set(NAMES) | {"chat"}
    assert {path.stem for path in GOLDEN.iterdir()} == set(NAMES)
    assert set(WAYS) == set(NAMES) == set(PRESETS)
    assert len(PRESETS) == len(NAMES)


SECTIONS = ("What is sent", "What counts as delivered", "Permissions", "Tried against")


@pytest.mark.parametrize("name", NAMES)
def test_each_page_has_the_same_sections(name: PresetName) -> None:
    text = (ROOT / "config" / "presets" / f"{name}.md").read_text(encoding="utf-8")

    found = re.findall(r"(?m)^## (.+)$", text)
    assert [title for title in found if title in SECTIONS] == [*SECTIONS]
    assert re.search(rf"(?m)^What it is: the preset\s`{name}`", text)


def test_page_has_the_table_that_the_presets_make() -> None:
    """What is derived is written by ``python -m tests.sinks.derived``."""
    page = PAGE.read_text(encoding="utf-8")

    assert with_table(page) == page


@pytest.mark.parametrize("name", NAMES)
def test_check_accepts_the_example_as_it_stands(
    name: PresetName, tmp_path: Path
) -> None:
    path = tmp_path / f"{name}.toml"
    path.write_text(example(name), encoding="utf-8")

    result = CliRunner().invoke(
        main, ["check", "-c", str(path)], env=dict(WAYS[name].environ)
    )

    assert result.exit_code == 0, result.output
    assert "warning" not in result.output.lower()
    (sink,) = tomllib.loads(path.read_text(encoding="utf-8"))["sinks"]
    assert sink["preset"] == name

"""The whole configuration: all faults at once, with their places, without secrets."""

import contextlib
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.approvals.config import ApprovalsConfig
from bridge.configuration.config import Config, Settings
from bridge.configuration.load import load, parse
from bridge.events.config import EventsConfig
from bridge.events.vocabulary import EVENT_TYPES
from bridge.foundation.errors import ConfigError
from bridge.foundation.sections import Section
from bridge.health.config import HttpConfig
from bridge.imds.config import ImdsConfig
from bridge.outbox.statefile import StateConfig
from bridge.sinks.registry import SINK_TYPES
from bridge.sinks.webhook.sink import WebhookSinkConfig
from bridge.telemetry import metrics as telemetry
from tests.sinks.derived import COMMAND
from tests.support.strategies import JSON_VALUES

EXAMPLE = Path(__file__).parents[2] / "config" / "bridge.example.toml"
SECRET = "hunter2-is-my-secret"
WEBHOOK = {"name": "siem", "type": "webhook", "url": "https://siem.example/ingest"}
SLACK = {"name": "ops", "type": "slack", "webhook_url": "https://slack.example/x"}
BUS = {
    "name": "bus",
    "type": "servicebus",
    "namespace": "contoso.servicebus.windows.net",
    "topic": "scheduled-events",
}
APPROVALS = {"namespace": "contoso.servicebus.windows.net", "queue": "vm-approvals"}
EMULATOR = (
    "Endpoint=sb://localhost{};SharedAccessKeyName=n;SharedAccessKey=k;"
    "UseDevelopmentEmulator=true"
)
CONNECTION_STRING = (
    "Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=n;"
    f"SharedAccessKey={SECRET}"
)
# The secrets of the example. A URL is a password and a header as well.
ENVIRON = dict.fromkeys(
    re.findall(r'(?m)^[^#\n]*"env:(\w+)"', EXAMPLE.read_text(encoding="utf-8")),
    "https://x.example/",
)


def read(tables: Mapping[str, object], **environ: str) -> Config:
    return parse(tables, file="b.toml", environ=environ)


def faults(tables: Mapping[str, object], **environ: str) -> list[str]:
    """Return the faults, without the name of the file."""
    with pytest.raises(ConfigError) as caught:
        read(tables, **environ)
    assert all(fault.startswith("b.toml: ") for fault in caught.value.faults)
    return [fault.removeprefix("b.toml: ") for fault in caught.value.faults]


def sinks(*tables: Mapping[str, object]) -> dict[str, object]:
    return {"sinks": [dict(table) for table in tables]}


# -- the file ------------------------------------------------------------------


def test_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "b.toml"
    path.write_text('[imds]\npoll_interval = "2s"\n')

    assert load(path, {}, allow_empty=True).imds.poll_interval == 2.0


def test_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    """Editors on Windows write one."""
    path = tmp_path / "b.toml"
    path.write_bytes(b'\xef\xbb\xbf[imds]\r\npoll_interval = "2s"\r\n')

    assert load(path, {}, allow_empty=True).imds.poll_interval == 2.0


def test_byte_order_mark_in_a_secret_file_is_no_part_of_the_secret(
    tmp_path: Path,
) -> None:
    path = tmp_path / "token"
    path.write_bytes(b"\xef\xbb\xbf" + SECRET.encode())

    token = read({"http": {"token": f"file:{path}"}}).http.token

    assert token is not None
    assert token.reveal() == SECRET


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"\xe4", "cannot be read: it is not UTF-8 text"),
        (b"[imds", "no valid TOML: "),
        (b"a = 1\na = 2", "no valid TOML: "),
        (b"a = " + b"[" * 20_000, "no valid TOML: "),
        (b"a = " + b"1" * 5_000, "no valid TOML: "),
    ],
)
def test_unreadable_file_is_one_fault(
    content: bytes | None, what: str, tmp_path: Path
) -> None:
    path = tmp_path / "b.toml"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(ConfigError) as caught:
        load(path, {})

    (fault,) = caught.value.faults
    assert fault.startswith(f"{path}: {what}")


def test_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(tmp_path, {})


def test_empty_file_means_the_defaults() -> None:
    assert read({}) == Config()


def test_given_tables_are_not_changed() -> None:
    tables = sinks(WEBHOOK)

    read(tables, SEBRIDGE__SINKS__SIEM__TIMEOUT="3s", SEBRIDGE__LOG__LEVEL="debug")

    assert tables == sinks(WEBHOOK)


# -- faults --------------------------------------------------------------------


def test_all_faults_are_reported_at_once() -> None:
    tables: dict[str, object] = {
        "shutdown_grase": 1,
        "imds": {"poll_interval": "1ms", "endpoint": 5},
        "log": "loud",
        "sinks": [
            {"name": "a", "type": "webhok"},
            {**SLACK, "timeout": "soon"},
        ],
        "approvals": {**APPROVALS, "queu": "x"},
    }

    assert [fault.split(": ")[0] for fault in faults(tables)] == [
        "approvals.queu",
        "imds.endpoint",
        "imds.poll_interval",
        "log",
        "shutdown_grase",
        "sinks.a.type",
        "sinks.ops.timeout",
    ]


@pytest.mark.parametrize(
    ("text", "places"),
    [
        (
            """
            [events]
            heartbeat = "soon"
            type_prefix = "-"
            source = "a b"
            [imds]
            api_version = "2038-01-01"
            endpoint = "ftp://x"
            poll_interval = 0
            request_timeout = 0
            [state]
            path = ""
            retention = "soon"
            """,
            (
                *("events.heartbeat", "events.source", "events.type_prefix"),
                *("imds.api_version", "imds.endpoint", "imds.poll_interval"),
                *("imds.request_timeout", "state.path", "state.retention"),
            ),
        ),
        (
            """
            [http]
            listen = "0.0.0.0:1"
            tokn = "x"
            """,
            ("http.token", "http.tokn"),
        ),
        (
            """
            [http]
            listen = "nowhere"
            token = "env:GONE"
            """,
            ("http.listen", "http.token"),
        ),
        (
            """
            [[sinks]]
            name = "bus"
            type = "servicebus"
            namespace = "http://x"
            session = "all"
            queue = "q"
            topic = "t"
            http_proxy = "proxy"
            client_id = 5
            when = {scope = 1}
            """,
            (
                *("sinks.bus.client_id", "sinks.bus.http_proxy"),
                *("sinks.bus.http_proxy", "sinks.bus.namespace", "sinks.bus.queue"),
                *("sinks.bus.session", "sinks.bus.when.scope"),
            ),
        ),
        (
            """
            [[sinks]]
            name = "bus"
            type = "servicebus"
            namespace = "contoso.servicebus.windows.net"
            connection_string = "env:GONE"
            """,
            ("sinks.bus.connection_string", "sinks.bus.namespace", "sinks.bus.queue"),
        ),
        (
            """
            [[sinks]]
            name = "-"
            type = "webhook"
            timeout = 0
            proxy = "p"
            headers = {x-a = 5, x-b = "{vm", Host = "x"}
            [sinks.when]
            resources = []
            transitions = ["begun"]
            [sinks.retry]
            max_age = "x"
            max_backoff = 0
            """,
            (
                *("sinks[0].headers.Host", "sinks[0].headers.x-a"),
                *("sinks[0].headers.x-b", "sinks[0].name", "sinks[0].proxy"),
                *("sinks[0].retry.max_age", "sinks[0].retry.max_backoff"),
                *("sinks[0].timeout", "sinks[0].url", "sinks[0].when.resources"),
                "sinks[0].when.transitions[0]",
            ),
        ),
        (
            """
            [[sinks]]
            type = "webhok"
            when = {scope = 1}
            retry = {age = 1}
            """,
            (
                *("sinks[0].name", "sinks[0].retry.age", "sinks[0].type"),
                "sinks[0].when.scope",
            ),
        ),
        (
            """
            [approvals]
            connection_string = "env:GONE"
            client_id = "c"
            topic = "t"
            sessions = [5, "{vm"]
            on_unknown = "drop"
            unknown_grace = -1
            max_age = 0
            """,
            (
                *("approvals.client_id", "approvals.connection_string"),
                *("approvals.max_age", "approvals.on_unknown"),
                *("approvals.sessions[0]", "approvals.sessions[1]"),
                *("approvals.subscription", "approvals.unknown_grace"),
            ),
        ),
    ],
)
def test_no_fault_hides_another(text: str, places: tuple[str, ...]) -> None:
    found = faults(tomllib.loads(text))

    assert sorted(fault.split(": ")[0] for fault in found) == list(places)


@pytest.mark.parametrize(
    "table",
    [
        {"connection_string": "env:GONE", "queue": "q"},
        {"connection_string": "5ec12e7", "queue": "q"},
        {"connection_string": f"{CONNECTION_STRING};EntityPath=q", "queue": 5},
        {"namespace": 5, "queue": "q"},
        {**APPROVALS, "transport": "amqp-web", "http_proxy": "http://p:3128"},
        {**APPROVALS, "transport": "amqp-websocket", "http_proxy": "env:GONE"},
        {"namespace": "a.b", "topic": "t", "subscription": 5},
    ],
)
def test_no_fault_follows_from_another(table: dict[str, object]) -> None:
    assert len(faults({"approvals": table})) == 1


@pytest.mark.slow
@given(
    st.fixed_dictionaries(
        {},
        optional={
            key: JSON_VALUES
            | st.dictionaries(
                st.sampled_from(sorted(set(kind.__struct_fields__))), JSON_VALUES
            )
            for key, kind in (
                ("imds", ImdsConfig),
                ("events", EventsConfig),
                ("http", HttpConfig),
                ("state", StateConfig),
                ("approvals", ApprovalsConfig),
            )
        },
    ),
    st.lists(
        st.sampled_from(sorted(SINK_TYPES)).flatmap(
            lambda kind: st.fixed_dictionaries(
                {"type": st.just(kind)},
                optional={
                    key: JSON_VALUES | st.just("x")
                    for key in SINK_TYPES[kind].__struct_fields__
                    if key != "type"
                },
            )
        ),
        max_size=2,
    ),
)
def test_any_configuration_is_read_or_has_faults(
    tables: dict[str, object], found: list[dict[str, object]]
) -> None:
    with contextlib.suppress(ConfigError):
        read({**tables, "sinks": found})


@pytest.mark.parametrize(
    ("tables", "fault"),
    [
        ({"sink": []}, "sink: unknown key; did you mean 'sinks'?"),
        ({"approval": {}}, "approval: unknown key; did you mean 'approvals'?"),
        ({"imds": {"interval": 1}}, "imds.interval: unknown key; did you mean 'poll_"),
        (
            sinks({**WEBHOOK, "retry": {"max_agee": 1}}),
            "sinks.siem.retry.max_agee: unknown key; did you mean 'max_age'?",
        ),
        (
            sinks({**WEBHOOK, "webhook_url": "x"}),
            "sinks.siem.webhook_url: unknown key; allowed are ",
        ),
        (
            {"approvals": {**APPROVALS, "session": []}},
            "approvals.session: unknown key; did you mean 'sessions'?",
        ),
    ],
)
def test_unknown_key_suggests_the_nearest(
    tables: dict[str, object], fault: str
) -> None:
    (found,) = faults(tables)

    assert found.startswith(fault)


@pytest.mark.parametrize(
    ("tables", "fault"),
    [
        ('shutdown_grace = "x"', "shutdown_grace: must be a number of seconds or a "),
        ("imds = 5", "imds: must be a table, not a whole number"),
        ("[imds]\nendpoint = 2020-01-01", "imds.endpoint: must be a string, not "),
        ("[imds]\npoll_interval = nan", "imds.poll_interval: must be a number of "),
        ("[events]\ndocuments = 1", "events.documents: must be true or false, not a"),
        ('[log]\nlevel = "loud"', 'log.level: must be one of "debug", "info", "warn'),
        ("approvals = 5", "approvals: must be a table"),
        ("[sinks]", "sinks: must be a list of tables: [[sinks]]"),
        ("sinks = [1]", "sinks[0]: must be a table: [[sinks]]"),
        ('[[sinks]]\nname = "a"', "sinks.a.type: is missing; allowed are "),
        ('[[sinks]]\nname = "a"\ntype = ["slack"]', "sinks.a.type: "),
    ],
)
def test_value_of_a_wrong_type_names_the_allowed_types(tables: str, fault: str) -> None:
    (found,) = faults(tomllib.loads(tables))

    assert found.startswith(fault)


def test_every_wrong_header_is_named() -> None:
    headers = {"x-a": "env:A", "x-b": "env:B", "x-c": 5, "x-team": "infra"}

    assert faults(sinks({**WEBHOOK, "headers": headers})) == [
        "sinks.siem.headers.x-a: the environment variable A is not set",
        "sinks.siem.headers.x-b: the environment variable B is not set",
        'sinks.siem.headers.x-c: must be a string: "env:NAME", "file:PATH" or itself',
    ]


def test_every_wrong_item_of_a_list_is_numbered() -> None:
    when = {"transitions": ["scheduled", "begun", 5], "resources": [1]}

    assert [f.split(": ")[0] for f in faults(sinks({**WEBHOOK, "when": when}))] == [
        "sinks.siem.when.resources[0]",
        "sinks.siem.when.transitions[1]",
        "sinks.siem.when.transitions[2]",
    ]


def test_unknown_type_of_sink_names_the_allowed_types() -> None:
    (found,) = faults(sinks({**WEBHOOK, "type": "webhok"}))

    assert found.startswith("sinks.siem.type: 'webhok' is no type of sink; did you ")
    assert all(f'"{kind}"' in found for kind in SINK_TYPES)


def test_taken_name_is_reported_beside_other_faults() -> None:
    tables = sinks(
        {"name": "a", "type": "webhook"},
        {"name": "a", "type": "carrier-pigeon"},
    )

    assert [fault.split(": ")[0] for fault in faults(tables)] == [
        "sinks.a.name",
        "sinks.a.type",
        "sinks.a.url",
    ]


@pytest.mark.parametrize(
    "name", ["", "-a", "_a", "a b", "ö", "$replies", "a.b", "a\n", "x" * 64]
)
def test_name_that_metrics_or_variables_cannot_hold_is_refused(name: str) -> None:
    (found,) = faults(sinks({**WEBHOOK, "name": name}))

    assert found.startswith("sinks[0].name: must be 1 to 63 letters, digits, ")


def test_invalid_name_is_reported_beside_other_faults() -> None:
    places = [f.split(": ")[0] for f in faults(sinks({"name": "-", "type": "slack"}))]

    assert places == ["sinks[0].name", "sinks[0].webhook_url"]


@pytest.mark.parametrize("name", ["a", "A-1_b", "0", "x" * 63])
def test_plain_name_is_accepted(name: str) -> None:
    assert read(sinks({**WEBHOOK, "name": name})).sinks[0].name == name


def test_sink_without_a_name_is_named_by_its_number() -> None:
    unnamed = {key: value for key, value in WEBHOOK.items() if key != "name"}

    assert faults(sinks(SLACK, unnamed)) == ["sinks[1].name: is missing"]


@pytest.mark.parametrize("interval", [0, 0.249, "249ms", "0s"])
def test_poll_interval_below_what_imds_allows_is_refused(interval: object) -> None:
    (found,) = faults({"imds": {"poll_interval": interval}})

    assert found.startswith("imds.poll_interval: must be at least 250ms")


@pytest.mark.parametrize(
    ("listen", "is_open"),
    [
        *(("127.0.0.1:0", False), ("127.9.9.9:80", False), ("[::1]:9465", False)),
        *(("localhost:9465", False), ("LOCALHOST:9465", False), ("", False)),
        *(("0.0.0.0:9465", True), ("[::]:9465", True), ("vm.example:80", True)),
    ],
)
def test_token_is_required_off_loopback(listen: str, *, is_open: bool) -> None:
    tables = {"http": {"listen": listen}}

    if is_open:
        (found,) = faults(tables)
        assert found.startswith("http.token: is required, since ")
    else:
        assert read(tables).http.listen == listen
    assert read({"http": {"listen": listen, "token": SECRET}}).http.token is not None


@pytest.mark.parametrize("listen", ["9465", ":9465", "localhost", "a:b", "a:65536"])
def test_invalid_address_is_refused(listen: str) -> None:
    (found,) = faults({"http": {"listen": listen}})

    assert found.startswith("http.listen: must be host:port")


@pytest.mark.parametrize(
    ("state", "fault"),
    [
        ({"retention": "59m"}, "state.retention: must be at least 1h"),
        ({"path": ""}, "state.path: must be the path of a file; ~ is not expanded"),
        ({"path": "~/s"}, "state.path: must be the path of a file; ~ is not expanded"),
        ({"path": "/s\0"}, "state.path: must have no NUL character"),
        (
            {"path": f"/x/{'ł' * 41}"},
            "state.path: the file's name must have at most 80 bytes",
        ),
    ],
)
def test_retention_below_an_hour_and_empty_path_are_refused(
    state: dict[str, object], fault: str
) -> None:
    assert faults({"state": state}) == [fault]


# -- conflicting sections --------------------------------------------------------


@pytest.mark.parametrize(
    ("sink", "approvals", "keys"),
    [
        (
            {"namespace": "Contoso.servicebus.windows.net", "queue": "VM-Approvals"},
            APPROVALS,
            ("queue", "queue"),
        ),
        (
            {"connection_string": CONNECTION_STRING, "queue": "vm-approvals"},
            APPROVALS,
            ("queue", "queue"),
        ),
        (
            {
                "namespace": "contoso.servicebus.windows.net",
                "topic": "/approvals/",
            },
            {
                "connection_string": f"{CONNECTION_STRING.upper()}".replace(
                    "SB://CONTOSO", "sb://contoso"
                ),
                "topic": "approvals",
                "subscription": "s",
            },
            ("topic", "topic"),
        ),
        (
            {"connection_string": EMULATOR.format(":5672"), "topic": "x"},
            {"connection_string": EMULATOR.format(""), "queue": "x"},
            ("topic", "queue"),
        ),
    ],
)
def test_sink_to_the_approval_entity_is_refused(
    sink: dict[str, object], approvals: dict[str, object], keys: tuple[str, str]
) -> None:
    """Otherwise the bridge would refuse its own events as approvals, endlessly."""
    tables = sinks(WEBHOOK, {"name": "bus", "type": "servicebus", **sink})

    (fault,) = faults({**tables, "approvals": approvals})

    places = f"sinks.bus.{keys[0]}: must not be approvals.{keys[1]}: "
    assert fault == f"{places}the bridge would receive its own events as approvals"


def test_loop_is_reported_beside_faults_of_other_sections() -> None:
    sink = {**BUS, "topic": "", "queue": "vm-approvals"}
    tables = {**sinks(sink), "approvals": APPROVALS, "imds": {"poll_interval": 0}}

    assert [fault.split(": ")[0] for fault in faults(tables)] == [
        "imds.poll_interval",
        "sinks.bus.queue",
    ]


@pytest.mark.parametrize(
    ("sink", "approvals"),
    [
        ({"queue": "other"}, {}),
        ({"queue": "vm-approvals", "namespace": "other.servicebus.windows.net"}, {}),
        (
            {"queue": "x", "namespace": "", "connection_string": EMULATOR.format(":1")},
            {"queue": "x", "namespace": "", "connection_string": EMULATOR.format("")},
        ),
    ],
)
def test_sink_to_another_entity_is_accepted(
    sink: dict[str, object], approvals: dict[str, object]
) -> None:
    tables = sinks({**BUS, "topic": "", **sink})

    assert read({**tables, "approvals": {**APPROVALS, **approvals}}).approvals


# -- overrides from the environment ----------------------------------------------


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("SHUTDOWN_GRACE", "3s", lambda c: c.shutdown_grace),
        ("IMDS__POLL_INTERVAL", "2s", lambda c: c.imds.poll_interval),
        ("EVENTS__DOCUMENTS", "true", lambda c: c.events.documents),
        ("HTTP__LISTEN", "", lambda c: c.http.listen),
        ("LOG__FORMAT", "text", lambda c: c.log.format),
        ("SINKS__SIEM__TIMEOUT", "3s", lambda c: c.sinks[0].timeout),
        ("SINKS__SIEM__RETRY__MAX_AGE", "1h", lambda c: c.sinks[0].retry.max_age),
        ("SINKS__SIEM__WHEN__SCOPE", "own", lambda c: c.sinks[0].when.scope),
        ("SINKS__SIEM__WHEN__LIFECYCLE", "false", lambda c: c.sinks[0].when.lifecycle),
        ("SINKS__WEB_1__TIMEOUT", "3s", lambda c: c.sinks[1].timeout),
        ("SINKS__A__B__TIMEOUT", "3s", lambda c: c.sinks[2].timeout),
        ("APPROVALS__QUEUE", "other", lambda c: c.approvals.queue),
    ],
)
def test_scalar_is_overridden_from_the_environment(
    variable: str, text: str, value: Callable[[Config], object]
) -> None:
    tables = sinks(WEBHOOK, {**WEBHOOK, "name": "Web-1"}, {**WEBHOOK, "name": "a__b"})
    tables["approvals"] = APPROVALS

    found = value(read(tables, **{f"SEBRIDGE__{variable}": text}))

    known = {"3s": 3, "2s": 2, "1h": 3600, "true": True, "false": False}
    assert found == known.get(text, text)


@pytest.mark.parametrize(
    ("text", "value"), [("false", False), ("0", 0), ("0.5", 0.5), ("ok", "ok")]
)
def test_override_of_any_scalar_is_what_it_looks_like(text: str, value: object) -> None:
    success = {"json_path": "errors", "json_equals": True}
    tables = sinks({**WEBHOOK, "success": success})

    (sink,) = read(tables, SEBRIDGE__SINKS__SIEM__SUCCESS__JSON_EQUALS=text).sinks

    assert isinstance(sink, WebhookSinkConfig)
    assert sink.success is not None
    equals = sink.success.json_equals
    assert (type(equals), equals) == (type(value), value)


def test_override_wins_over_a_wrong_value_in_the_file() -> None:
    tables = {"imds": {"poll_interval": "soon"}}

    assert read(tables, SEBRIDGE__IMDS__POLL_INTERVAL="2s").imds.poll_interval == 2.0


def test_secret_is_overridden_and_may_be_a_reference() -> None:
    environ = {"SEBRIDGE__HTTP__TOKEN": "env:TOKEN", "TOKEN": SECRET}
    token = read({}, **environ).http.token

    assert token is not None
    assert token.reveal() == SECRET


def test_overridden_name_of_a_sink_does_not_hide_other_overrides_of_it() -> None:
    config = read(
        sinks(WEBHOOK),
        SEBRIDGE__SINKS__SIEM__NAME="other",
        SEBRIDGE__SINKS__SIEM__URL="https://other.example",
    )

    assert config.sinks[0].name == "other"


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("IMDS__POLL_INTERVAL_", "did you mean POLL_INTERVAL?"),
        ("IMDSS__POLL_INTERVAL", "did you mean IMDS?"),
        ("SHUTDOWN", "did you mean SHUTDOWN_GRACE?"),
        ("SINK__SIEM__URL", "did you mean SINKS?"),
        ("SINKS__SIME__URL", "did you mean SIEM?"),
        ("SINKS__SIEM__URI", "did you mean URL?"),
        ("SINKS__SIEM__RETRY__AGE", "did you mean MAX_AGE?"),
        ("ZZZZZ", "no such key"),
        ("", "no such key"),
        ("SINKS__ZZZZZ__URL", "no such sink"),
        ("SINKS__SIEM__HEADERS__X_TEAM", "HEADERS has no keys of its own"),
    ],
)
def test_unknown_variable_is_a_fault_that_names_the_nearest(
    variable: str, hint: str
) -> None:
    (found,) = faults(sinks(WEBHOOK), **{f"SEBRIDGE__{variable}": SECRET})

    assert found.startswith(f"SEBRIDGE__{variable}: unknown variable: ")
    assert hint in found


@pytest.mark.parametrize(
    "variable", ["IMDS", "APPROVALS", "SINKS__SIEM__RETRY", "SINKS", "SINKS__SIEM"]
)
def test_variable_that_names_a_table_is_a_fault(variable: str) -> None:
    tables = {**sinks(WEBHOOK), "approvals": APPROVALS}
    (found,) = faults(tables, **{f"SEBRIDGE__{variable}": "x"})

    assert found.startswith(f"SEBRIDGE__{variable}: is a table: ")


@pytest.mark.parametrize(
    ("variable", "what"),
    [
        ("APPROVALS__SESSIONS", "a list"),
        ("SINKS__SIEM__WHEN__RESOURCES", "a list"),
        ("SINKS__SIEM__HEADERS", "a table"),
    ],
)
def test_list_or_table_is_not_taken_from_the_environment(
    variable: str, what: str
) -> None:
    tables = {**sinks(WEBHOOK), "approvals": APPROVALS}
    (found,) = faults(tables, **{f"SEBRIDGE__{variable}": "a,b"})

    assert found == f"SEBRIDGE__{variable}: must be {what}, not a string"


def test_override_of_a_sink_of_unknown_type_adds_no_second_fault() -> None:
    tables = sinks({**WEBHOOK, "type": "webhok"})

    (found,) = faults(tables, SEBRIDGE__SINKS__SIEM__URL="https://x")

    assert found.startswith("sinks.siem.type: ")


@pytest.mark.parametrize(
    ("tables", "variable", "place"),
    [
        ({"imds": 5}, "SEBRIDGE__IMDS__ENDPOINT", "imds"),
        ({"sinks": 5}, "SEBRIDGE__SINKS__A__URL", "sinks"),
        ({"sinks": [5]}, "SEBRIDGE__SINKS__A__URL", "sinks[0]"),
        (sinks({**WEBHOOK, "retry": 5}), "SEBRIDGE__SINKS__SIEM__RETRY__MAX_AGE", "s"),
    ],
)
def test_override_in_an_invalid_table_is_a_fault_of_the_table(
    tables: dict[str, object], variable: str, place: str
) -> None:
    assert any(f.startswith(place) for f in faults(tables, **{variable: "1h"}))


# -- secrets -------------------------------------------------------------------


def test_literal_secret_is_accepted_with_a_warning() -> None:
    tables = {
        "http": {"token": SECRET},
        "approvals": {
            "connection_string": "Endpoint=sb://a.b/;SharedAccessKeyName=n;"
            f"SharedAccessKey={SECRET}",
            "queue": "q",
        },
        **sinks(SLACK),
    }

    assert read(tables).warnings() == [
        f"{place}: a literal secret; better env:NAME or file:PATH"
        for place in (
            "http.token",
            "sinks.ops.webhook_url",
            "approvals.connection_string",
        )
    ]


@pytest.mark.parametrize(
    ("url", "is_warned_of"),
    [
        ("http://127.0.0.1:8081/slack/ops", False),
        ("http://localhost:8081/slack/ops", False),
        ("http://[::1]:8081/slack/ops", False),
        (f"http://{SECRET}@localhost/slack", True),
        (f"http://localhost/slack?a={SECRET}", True),
        (f"http://localhost.example/{SECRET}", True),
        (f"https://127.0.0.1/{SECRET}", True),
    ],
)
def test_address_of_a_simulator_on_this_machine_is_no_secret(
    url: str, *, is_warned_of: bool
) -> None:
    found = read(sinks({**SLACK, "webhook_url": url})).warnings()

    assert bool(found) == is_warned_of


def test_example_of_a_newcomer_gives_no_warning() -> None:
    environ = {"SERVICEBUS": EMULATOR.format("")}

    found = load(EXAMPLE.parent / "examples" / "simulator.toml", environ)

    assert found.warnings() == []


@pytest.mark.parametrize(
    "keys",
    [
        {"headers": {"x-team": "infra", "x-vm": "{vm_id}", "accept": "*/*"}},
        {"url": "https://siem.example/ingest?team=infra&design=1&api-version=2"},
        {"url": "https://siem.example/ingest?code=&sig"},
        {"proxy": "http://proxy.example:3128"},
        {"url": "https://siem.example/?{}"},
    ],
)
def test_url_and_header_may_stand_in_the_file_without_a_warning(
    keys: dict[str, object],
) -> None:
    assert read(sinks({**WEBHOOK, **keys})).warnings() == []


@pytest.mark.parametrize(
    ("keys", "place"),
    [
        ({"url": f"https://user:{SECRET}@siem.example/"}, "url"),
        ({"url": f"https://{SECRET}@siem.example/"}, "url"),
        ({"url": f"https://siem.example/?code={SECRET}"}, "url"),
        ({"url": f"https://siem.example/?team=a&Sig={SECRET}"}, "url"),
        ({"url": f"https://siem.example/?access_token={SECRET}"}, "url"),
        ({"url": f"https://siem.example/?subscription-key={SECRET}"}, "url"),
        ({"proxy": f"http://user:{SECRET}@proxy.example:3128"}, "proxy"),
        *(
            ({"headers": {"x-team": "infra", name: SECRET}}, f"headers.{name}")
            for name in (
                *("Authorization", "x-api-key", "X-Functions-Key", "x-auth"),
                *("apikey", "x-vault-token", "client-secret", "x-code", "cookie"),
                *("x-hub-signature", "x-password"),
            )
        ),
    ],
)
def test_address_that_may_hold_a_secret_is_accepted_with_a_warning(
    keys: dict[str, object], place: str
) -> None:
    (warning,) = read(sinks({**WEBHOOK, **keys})).warnings()

    assert warning == (
        f"sinks.siem.{place}: a literal secret; better env:NAME or file:PATH"
    )


def test_secret_in_the_proxy_of_a_namespace_is_a_warning() -> None:
    proxy = f"http://user:{SECRET}@proxy.example:3128"
    more = {"transport": "amqp-websocket", "http_proxy": proxy}

    found = read({**sinks({**BUS, **more}), "approvals": {**APPROVALS, **more}})

    assert [warning.split(": ")[0] for warning in found.warnings()] == [
        "sinks.bus.http_proxy",
        "approvals.http_proxy",
    ]


@pytest.mark.parametrize(
    ("when", "keys"),
    [
        ({"scope": "first"}, "scope"),
        ({"event_types": ["Reboot"], "scope": "first"}, "event_types, scope"),
        ({"transitions": ["started"]}, None),
        ({"scope": "all"}, None),
    ],
)
def test_filter_that_hides_outcomes_from_a_hub_is_a_warning(
    when: dict[str, object], keys: str | None
) -> None:
    found = read({**sinks({**BUS, "when": when}), "approvals": APPROVALS}).warnings()

    hidden = [text for text in found if "outcomes of approvals" in text]
    wanted = f"sinks.bus.when: {keys} also leaves out outcomes of approvals"
    assert [text.startswith(wanted) for text in hidden] == [True] * bool(keys)


def test_outcomes_of_other_vms_that_are_not_sent_are_noted() -> None:
    found = read({**sinks({**BUS, "when": {"scope": "own"}}), "approvals": APPROVALS})

    assert [text for text in found.warnings() if "outcomes" in text] == []
    assert [text for text in found.notes() if "sinks.bus.when.scope" in text] != []


def test_referenced_address_is_no_warning() -> None:
    url = f"https://user:{SECRET}@siem.example/?code={SECRET}"
    keys = {"url": "env:URL", "headers": {"x-key": "env:AUTH"}}

    assert read(sinks({**WEBHOOK, **keys}), URL=url, AUTH=SECRET).warnings() == []


def test_referenced_secret_is_no_warning(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("https://slack.example/x")
    tables = sinks({**SLACK, "webhook_url": f"file:{tmp_path / 'url'}"})

    assert read(tables | {"http": {"token": "env:T"}}, T="x").warnings() == []


def test_undocumented_word_is_accepted_with_a_warning() -> None:
    rules = [{"action": "deny"}, {"action": "allow", "event_sources": ["user", "me"]}]
    approvals = {**APPROVALS, "allow_event_types": ["preempted"], "rules": rules}
    when = {"event_types": ["REBOOT", "rebot"], "event_sources": ["Platfrom"]}

    found = read({**sinks({**WEBHOOK, "when": when}), "approvals": approvals})

    undocumented = "is not documented by Azure"
    assert [text for text in found.warnings() if undocumented in text] == [
        f"{place}: {word!r} {undocumented}; {hint}"
        for place, word, hint in (
            ("sinks.siem.when.event_types", "rebot", "did you mean 'Reboot'?"),
            ("sinks.siem.when.event_sources", "Platfrom", "did you mean 'Platform'?"),
            ("approvals.allow_event_types", "preempted", "did you mean 'Preempt'?"),
            ("approvals.rules[1].event_sources", "me", "known are Platform, User"),
        )
    ]


def test_words_that_azure_documents_are_those_of_the_metrics() -> None:
    assert {*EVENT_TYPES, "other"} == {*telemetry.TYPES}


def test_configuration_without_a_sink_is_a_warning() -> None:
    (warning,) = read({}).warnings()

    assert warning.startswith("sinks: there are none")


@pytest.mark.parametrize(
    ("reference", "what"),
    [
        ("env:NOPE", "the environment variable NOPE is not set"),
        ("file:/no/such/file", "the file /no/such/file cannot be read (No such file"),
    ],
)
def test_missing_secret_is_reported_before_the_start(reference: str, what: str) -> None:
    tables = sinks({**SLACK, "webhook_url": reference}, {**WEBHOOK, "url": reference})
    tables["http"] = {"token": reference}

    found = [fault.replace("\\", "/") for fault in faults(tables)]

    assert [fault.split(": ", 1)[0] for fault in found] == [
        "http.token",
        "sinks.ops.webhook_url",
        "sinks.siem.url",
    ]
    assert all(what in fault for fault in found)


PLACES: tuple[Callable[[object], dict[str, object]], ...] = (
    lambda secret: {"http": {"token": secret}},
    lambda secret: sinks({**SLACK, "webhook_url": secret}),
    lambda secret: sinks({**WEBHOOK, "url": secret}),
    lambda secret: sinks({**WEBHOOK, "headers": {"x-key": secret}}),
    lambda secret: sinks({**WEBHOOK, "proxy": secret}),
    lambda secret: sinks({**WEBHOOK, "auth": {"type": "bearer", "token": secret}}),
    lambda secret: sinks(
        {**WEBHOOK, "auth": {"type": "basic", "username": "u", "password": secret}}
    ),
    lambda secret: sinks(
        {**WEBHOOK, "auth": {"type": "header", "name": "x", "value": secret}}
    ),
    lambda secret: sinks({**WEBHOOK, "signature": {"secrets": [secret]}}),
    lambda secret: sinks({**BUS, "http_proxy": secret}),
    lambda secret: sinks({**BUS, "connection_string": secret}),
    lambda secret: {"approvals": {"queue": "q", "connection_string": secret}},
)
WRAPPED = st.sampled_from(
    (
        lambda text: text,
        lambda text: [text],
        lambda text: {"value": text},
        lambda text: f"https://user:{text}@siem.example/{text}?key={text}",
        lambda text: f"Endpoint=sb://a.b/;SharedAccessKeyName=n;SharedAccessKey={text}",
        lambda _: "env:SECRET",
    )
)
# Faults name placeholders; other texts in braces are no secrets, either.
TEXTS = st.text(st.characters(exclude_characters="{}"), min_size=1)


@given(place=st.sampled_from(PLACES), wrap=WRAPPED, text=TEXTS, fault=st.booleans())
def test_no_secret_shows_in_a_fault_a_warning_or_the_configuration(
    place: Callable[[object], dict[str, object]],
    wrap: Callable[[str], object],
    text: str,
    *,
    fault: bool,
) -> None:
    secret = f"5EC12E7{text}5EC12E7"
    tables = place(wrap(secret)) | ({"imds": 5} if fault else {})

    try:
        config = parse(tables, file="b.toml", environ={"SECRET": secret})
    except ConfigError as error:
        shown = f"{error}{error!r}{error.faults}"
    else:
        shown = f"{config}{config!r}{config.warnings()}"

    assert "5EC12E7" not in shown


@given(path=st.lists(st.sampled_from(["IMDS", "ENDPOINT", "SINKS", "OPS", "X"])))
def test_no_value_of_a_variable_shows_in_a_fault(path: list[str]) -> None:
    variable = "__".join(["SEBRIDGE", *path, ""])
    environ = {variable: SECRET, "SEBRIDGE__LOG__LEVEL": SECRET}

    with pytest.raises(ConfigError) as caught:
        parse(sinks(SLACK), file="b.toml", environ=environ)

    assert SECRET not in str(caught.value)


# -- the example -----------------------------------------------------------------


def example_tables() -> dict[str, object]:
    return tomllib.loads(EXAMPLE.read_text(encoding="utf-8"))


def example_with_what_is_commented_out() -> dict[str, object]:
    """Return the example, with its commented keys activated."""
    text = EXAMPLE.read_text(encoding="utf-8")
    return tomllib.loads(re.sub(r"(?m)^# (\[.*|\w+ = \S.*)$", r"\1", text))


def example_sinks() -> dict[str, dict[str, object]]:
    """Return the sinks of the example by type."""
    tables = example_with_what_is_commented_out()["sinks"]
    assert isinstance(tables, list)
    return {table["type"]: table for table in tables}


def keys(table: object, place: str = "") -> Iterator[str]:
    """Yield the places of all values in a table."""
    assert isinstance(table, dict)
    for key, value in table.items():
        if isinstance(value, dict) and key != "headers":
            yield from keys(value, f"{place}{key}.")
        elif isinstance(value, list) and any(isinstance(part, dict) for part in value):
            for part in value:
                yield from keys(part, f"{place}{key}.")
        else:
            yield f"{place}{key}"


def fields(
    kind: type[Section], place: str = ""
) -> Iterator[tuple[str, msgspec.structs.FieldInfo]]:
    """Yield the places and fields of all values of a section."""
    for field in msgspec.structs.fields(kind):
        for part in (field.type, *get_args(field.type)):
            if isinstance(part, type) and issubclass(part, Section):
                yield from fields(part, f"{place}{field.name}.")
                break
        else:
            yield f"{place}{field.name}", field


def test_example_is_accepted() -> None:
    config = load(EXAMPLE, ENVIRON)

    assert {sink.type for sink in config.sinks} == set(SINK_TYPES), f"run {COMMAND}"
    assert config.approvals is not None
    assert config.warnings() == []


def test_example_has_every_key_of_the_settings_and_no_other() -> None:
    tables = example_tables()
    rest = {k: v for k, v in tables.items() if k not in {"sinks", "approvals"}}

    commented = {"http.token"}

    assert {*keys(rest), *commented} == {place for place, _ in fields(Settings)}


@pytest.mark.parametrize("kind", SINK_TYPES)
def test_example_has_every_key_of_each_sink_and_no_other(kind: str) -> None:
    """The keys that all sinks have are shown at one sink only."""
    assert kind in example_sinks(), f"run {COMMAND}"
    given = set(keys(example_sinks()[kind]))
    common = {k for k in given if k.startswith(("when.", "retry."))}
    alternatives = {"queue"} if kind == "servicebus" else set()
    known = {place for place, _ in fields(SINK_TYPES[kind])}
    known_here = {k for k in known if not k.startswith(("when.", "retry."))}

    assert (given - common) | alternatives == known_here
    assert common <= known


def test_example_has_every_key_of_routing_and_retry() -> None:
    given = {key for table in example_sinks().values() for key in keys(table)}
    known = {place for place, _ in fields(next(iter(SINK_TYPES.values())))}

    for table in ("when.", "retry."):
        assert {k for k in given if k.startswith(table)} == {
            k for k in known if k.startswith(table)
        }


def test_example_has_every_key_of_approvals_and_no_other() -> None:
    given = set(keys(example_with_what_is_commented_out()["approvals"]))
    alternatives = {"topic", "subscription"}

    assert given | alternatives == {place for place, _ in fields(ApprovalsConfig)}
    text = EXAMPLE.read_text(encoding="utf-8")
    assert all(f'{key} = "…"' in text for key in (*alternatives, "queue"))


# Keys without a useful default, for which the example shows a typical value.
SHOWN = {"namespace", "topic", "queue", "headers", "url", "webhook_url", "command"} | {
    "name",
    "type",
    "username",
    "password",
    "subject_prefix",
}


def documented() -> list[tuple[str, type[Section], object]]:
    tables = example_tables()
    found: list[tuple[str, type[Section], object]] = [
        (
            "settings",
            Settings,
            {k: v for k, v in tables.items() if k not in {"sinks", "approvals"}},
        ),
        ("approvals", ApprovalsConfig, tables["approvals"]),
    ]
    sink_tables = tables["sinks"]
    assert isinstance(sink_tables, list)
    found += [(t["type"], SINK_TYPES[t["type"]], t) for t in sink_tables]
    return found


@pytest.mark.parametrize(
    ("kind", "table"),
    [(kind, table) for _, kind, table in documented()],
    ids=[name for name, _, _ in documented()],
)
def test_values_in_the_example_are_the_defaults_of_the_code(
    kind: type[Section], table: object
) -> None:
    compared = 0
    for place, field in fields(kind):
        value = table
        for key in place.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if value is None or field.required or place in SHOWN or "when." in place:
            continue
        assert msgspec.convert(value, field.type, dec_hook=decoded) == field.default, (
            f"{place}: show its default, or name it in SHOWN"
        )
        compared += 1

    assert compared


def decoded(kind: type, value: object) -> object:
    found: object = getattr(kind, "parse")(value)  # noqa: B009 - durations alone
    return found

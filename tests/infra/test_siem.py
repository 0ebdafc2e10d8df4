"""What is laid into a SIEM reads the events as they are really sent."""

import json
import re
import shutil
import subprocess
from configparser import RawConfigParser
from datetime import datetime, timedelta
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml
from jsonschema import Draft202012Validator
from msgspec import ValidationError, convert

from bridge.configuration import json_schema
from bridge.events.build import (
    Outcome,
    OutgoingEvent,
    from_document,
    from_outcome,
    from_transition,
)
from bridge.events.cloudevent import MAX_BYTES, CloudEvent
from bridge.events.command_result import CommandResult, from_command
from bridge.events.samples import marked_event
from bridge.events.transitions import Transition
from bridge.events.vocabulary import COMMAND_OUTCOMES, TransitionKind
from bridge.signing.own_key import EventSigner
from bridge.sinks.syslog.format import as_cef
from bridge.sinks.webhook.presets import elastic
from bridge.sinks.webhook.presets.sentinel import record
from bridge.telemetry.metrics import OUTCOMES
from tests.infra import fleet_week
from tests.signing.test_dsse import KEY
from tests.support.builders import (
    EVENT_ID,
    document,
    event_context_of,
    imds_event,
    own_event,
    started,
)
from tests.support.fakes import START

HERE = Path(__file__).parents[2] / "infra" / "siem"
CHECKER = Path(__file__).with_name("kusto") / "check.js"
RULES = {p.stem: yaml.safe_load(p.read_text()) for p in HERE.rglob("rules/*.yaml")}
QUERIES = {p.stem: p.read_text() for p in HERE.rglob("queries/*.kql")}
KQL = QUERIES | {name: rule["query"] for name, rule in RULES.items()}
STREAMS = ("transform", "transform.preset")
STEP = "Data.transition"
SPANS = {"m": 60, "h": 3600, "d": 86400}


def schema_paths() -> set[str]:
    """Return every field of the event's schema, such as ``data.reporter.vmName``."""
    schema = json.loads(json_schema.text("event"))
    kinds = schema["oneOf"]
    return {path for kind in kinds for path in _paths("", kind, schema["definitions"])}


def _paths(
    above: str, schema: dict[str, Any], known: dict[str, Any] | None = None
) -> list[str]:
    found = []
    if known and "$ref" in schema:
        schema = known[schema["$ref"].rpartition("/")[2]]
    for name, below in schema.get("properties", {}).items():
        found += [f"{above}{name}", *_paths(f"{above}{name}.", below, known)]
    return found


def sent() -> list[dict[str, Any]]:
    """Return one event of each kind, in structured JSON."""
    return [json.loads(event.to_json()) for event in published()]


def published() -> list[CloudEvent]:
    """Return one event of each kind."""
    event_context = event_context_of()
    doc = document(imds_event(), started("other"))
    announced, running = doc.events.values()
    request = {
        "messageId": "m1",
        "enqueuedAt": "2026-03-02T12:00:00Z",
        "approvedBy": "ada",
        "reason": "drained",
        "expiresAt": None,
    }
    steps = [
        Transition(
            kind=kind,
            event=running if kind is TransitionKind.STARTED else announced,
            previous=announced if kind is TransitionKind.UPDATED else None,
            changes=("NotBefore",) if kind is TransitionKind.UPDATED else (),
            announced=None if kind is TransitionKind.ENDED else True,
            unobserved=3,
        )
        for kind in TransitionKind
    ]
    found: list[OutgoingEvent] = [
        from_transition(event_context, s, incarnation=2, observed_at=START, repeats=0)
        for s in steps
    ]
    found += [
        from_outcome(
            event_context,
            Outcome(
                outcome=outcome,
                event_id=EVENT_ID,
                event=announced,
                imds_status=200,
                confirmed=True,
                reason="rule",
                request=request,
                origin=("vm-approvals", "m1", 1),
            ),
            START,
        )
        for outcome in OUTCOMES
    ]
    found += [
        own_event(event_context, "heartbeat", pending=1, dead=0, free_disk_bytes=2**40),
        own_event(event_context, "imds-unreachable", reason="no answer"),
        own_event(
            event_context,
            "traffic-out",
            event_id=EVENT_ID,
            since="2026-03-02T12:00:00Z",
        ),
        *(
            from_command(event_context, result(outcome), START)
            for outcome in COMMAND_OUTCOMES
        ),
        from_document(
            event_context,
            doc,
            previous_incarnation=1,
            observed_at=START + timedelta(microseconds=5),
            repeats=0,
        ),
    ]
    test = marked_event(event_context, "Reboot", unique="1", now=START)
    signed = EventSigner([KEY], "run").signed(test, 1)
    return [*(t.event for t in found), test, signed]


def result(outcome: str) -> CommandResult:
    return CommandResult(
        sink="drain",
        outcome=outcome,
        action="prepare",
        cause=marked_event(event_context_of(), "Reboot", unique="1", now=START),
        exit_code=None if outcome == "failed" else 0,
        signal="SIGKILL" if outcome == "failed" else None,
        timed_out=outcome == "failed",
        seconds=4.25,
        attempts=3,
        output="words",
        reason="it took too long",
    )


# -- Sentinel ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def read_by_kusto() -> dict[str, Any]:
    """Return what Microsoft's parser says of every query, with the real columns."""
    table = json.loads((HERE / "sentinel" / "table.json").read_text())
    stream = json.loads((HERE / "sentinel" / "stream.json").read_text())
    preset = json.loads((HERE / "sentinel" / "stream.preset.json").read_text())
    tables = {
        table["name"]: columns(table),
        "source": columns(stream),
        "preset": columns(preset),
    }
    transforms = {
        name: (HERE / "sentinel" / f"{name}.kql").read_text() for name in STREAMS
    }
    transforms["transform.preset"] = transforms["transform.preset"].replace(
        "source", "preset", 1
    )
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is missing: apt-get install nodejs")
    ran = subprocess.run(  # noqa: S603 - our own script
        [node, str(CHECKER)],
        input=json.dumps({"tables": tables, "queries": KQL | transforms}),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if "Cannot find module '@kusto" in ran.stderr:
        pytest.skip("the Kusto parser is missing: npm ci in tests/infra/kusto")
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def columns(table: dict[str, Any]) -> str:
    each = (f"['{c['name']}']:{c['type']}" for c in table["columns"])
    return f"({', '.join(each)})"


@pytest.mark.slow
def test_queries_are_kql_over_the_columns(read_by_kusto: dict[str, Any]) -> None:
    faults = {name: r["faults"] for name, r in read_by_kusto.items() if r["faults"]}

    assert faults == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", STREAMS)
def test_transform_makes_the_table(name: str, read_by_kusto: dict[str, Any]) -> None:
    table = json.loads((HERE / "sentinel" / "table.json").read_text())
    wanted = {c["name"]: c["type"] for c in table["columns"]}

    assert read_by_kusto[name]["columns"] == wanted


def test_stream_of_the_preset_is_what_it_sends() -> None:
    stream = json.loads((HERE / "sentinel" / "stream.preset.json").read_text())
    names = {c["name"] for c in stream["columns"]}

    assert {name for event in published() for name in record(event)} == names


def test_agent_of_azure_monitor_fills_the_same_table() -> None:
    rule = json.loads((HERE / "agents" / "azure-monitor.json").read_text())[
        "properties"
    ]
    stream = json.loads((HERE / "sentinel" / "stream.json").read_text())
    table = json.loads((HERE / "sentinel" / "table.json").read_text())
    transform = (HERE / "sentinel" / "transform.kql").read_text()
    (source,), (flow,) = rule["dataSources"]["logFiles"], rule["dataFlows"]

    assert rule["streamDeclarations"] == {
        stream["name"]: {"columns": stream["columns"]}
    }
    assert source["streams"] == flow["streams"] == [stream["name"]]
    assert flow["transformKql"] == " ".join(transform.split())
    assert flow["outputStream"] == f"Custom-{table['name']}"
    assert source["format"] == "json"


def test_agents_read_the_file_and_not_what_was_moved() -> None:
    """The Azure Monitor Agent tells twice what matches under its new name, too."""
    rule = json.loads((HERE / "agents" / "azure-monitor.json").read_text())
    fluent = yaml.safe_load((HERE / "agents" / "fluent-bit.yaml").read_text())
    (source,) = rule["properties"]["dataSources"]["logFiles"]
    (tail,) = fluent["pipeline"]["inputs"]

    for pattern in (*source["filePatterns"], tail["path"]):
        assert fnmatch("/var/log/sebridge/events.jsonl", pattern)
        assert not fnmatch("/var/log/sebridge/events.jsonl.1", pattern)
    buffer = int(tail["buffer_max_size"].removesuffix("k")) * 1000
    assert buffer > MAX_BYTES
    assert tail["parser"] in [parser["name"] for parser in fluent["parsers"]]


def test_stream_takes_every_attribute() -> None:
    stream = json.loads((HERE / "sentinel" / "stream.json").read_text())
    names = {c["name"] for c in stream["columns"]}

    assert names == {path for path in schema_paths() if "." not in path}


@pytest.mark.parametrize("name", KQL)
def test_fields_of_the_queries_exist(name: str) -> None:
    used = {f"data{f}" for f in re.findall(r"\bData((?:\.\w+)+)", KQL[name])}

    assert used <= schema_paths()


@pytest.mark.parametrize("name", [n for n, text in KQL.items() if STEP in text])
def test_query_for_steps_of_events_takes_no_result_of_a_command(name: str) -> None:
    """It names the step that the command was run for."""
    families = set(re.findall(r'CloudEventType has "(\w+)"', KQL[name]))

    assert "scheduledevent" in families or "isnotempty(Data.sink)" in KQL[name]


@pytest.mark.parametrize("name", QUERIES)
def test_query_says_what_it_shows(name: str) -> None:
    assert QUERIES[name].startswith("// ")


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_rule_has_the_form_of_a_scheduled_rule(
    name: str, read_by_kusto: dict[str, Any]
) -> None:
    rule = RULES[name]
    every, back = (seconds(rule[key]) for key in ("queryFrequency", "queryPeriod"))

    assert str(UUID(rule["id"])) == rule["id"]
    assert (rule["kind"], rule["triggerOperator"]) == ("Scheduled", "gt")
    assert rule["severity"] in {"Informational", "Low", "Medium", "High"}
    assert re.fullmatch(r"\d+\.\d+\.\d+", rule["version"])
    assert 300 <= every <= back <= 14 * 86400
    assert back < 2 * 86400 or every >= 3600
    assert 1 <= len(rule["entityMappings"]) <= 5
    for entity in rule["entityMappings"]:
        for field in entity["fieldMappings"]:
            assert field["columnName"] in read_by_kusto[name]["columns"]


def seconds(span: str) -> int:
    return int(span[:-1]) * SPANS[span[-1]]


STATES = {"BridgeSilent", "DeadLetters", "ApprovalByNewcomer"}


@pytest.mark.parametrize("name", RULES)
def test_rule_tells_a_finding_once(name: str) -> None:
    """What is new since the last run, and an alert for each result of its own."""
    rule = RULES[name]
    every = f"Ingested > ago({rule['queryFrequency']})"

    assert rule["eventGroupingSettings"] == {"aggregationKind": "AlertPerResult"}
    assert every in rule["query"] or name == "BridgeSilent"
    is_counted_once = "summarize arg_min(Ingested, *) by CloudEventId" in rule["query"]
    assert is_counted_once or name in STATES | {"ImdsUnreachable"}


def test_rules_have_ids_of_their_own() -> None:
    assert len({rule["id"] for rule in RULES.values()}) == len(RULES)


# -- Splunk ------------------------------------------------------------------------


def conf(name: str) -> RawConfigParser:
    parser = RawConfigParser(delimiters=("=",), strict=True, interpolation=None)
    parser.read_string((HERE / "splunk" / name).read_text())
    return parser


SEARCHES = conf("savedsearches.conf")


@pytest.mark.parametrize("name", SEARCHES.sections())
def test_splunk_search_uses_fields_that_exist(name: str) -> None:
    search = SEARCHES[name]["search"]
    used = set(re.findall(r"\bdata(?:\.\w+)+", search))
    compared = set(re.findall(r"(?<![\w.])([a-z]+)(?:=| IN )", search))
    made = set(re.findall(r"\bas (\w+)|(?:eval |, )(\w+)=", search))
    own = {name for pair in made for name in pair}
    names = compared - own - {"index", "sourcetype"}

    assert used <= schema_paths()
    assert names <= schema_paths() - {"eventtype", "source"}
    assert search.count("(") == search.count(")")
    assert SEARCHES[name]["alert.suppress.fields"] in search
    assert SEARCHES[name]["alert.digest_mode"] == "0", "else fields suppress all"
    assert len(SEARCHES[name]["cron_schedule"].split()) == 5


@pytest.mark.parametrize("name", SEARCHES.sections())
def test_splunk_search_for_events_goes_by_index_time(name: str) -> None:
    """Its window is as long as the time between two searches."""
    options = SEARCHES[name]
    if "latest(type)" in options["search"] or "_indextime" in options["search"]:
        assert "dispatch.index_earliest" not in options, "a state, not an event"
        return
    minutes = int(re.findall(r"\*/(\d+)", options["cron_schedule"])[0])

    assert options["dispatch.index_earliest"] == f"-{minutes + 1}m@m"
    assert options["dispatch.index_latest"] == "-1m@m"


def test_splunk_search_for_steps_of_events_takes_no_result_of_a_command() -> None:
    for name in SEARCHES.sections():
        search = SEARCHES[name]["search"]
        if "data.transition" in search:
            assert 'type="*.scheduledevent.' in search, name


def test_splunk_finds_the_time_of_every_event() -> None:
    props = conf("props.conf")["sebridge:cloudevent"]
    ahead = int(props["max_timestamp_lookahead"])

    for event in sent():
        line = json.dumps(event, separators=(",", ":"))
        after = line.split(props["time_prefix"], 1)[1]
        assert after[:ahead].startswith(event["time"])
    assert int(props["truncate"]) > 60 * 1024


# -- Elastic -----------------------------------------------------------------------

TEMPLATE = json.loads((HERE / "elastic" / "index-template.json").read_text())
MAPPING = TEMPLATE["template"]["mappings"]
TYPES: dict[str, tuple[type, ...]] = {
    "keyword": (str,),
    "constant_keyword": (str,),
    "boolean": (bool,),
    "long": (int,),
    "integer": (int,),
    "byte": (int,),
    "float": (int, float),
    "flattened": (dict,),
    "date": (str,),
    "match_only_text": (str,),
    "text": (str,),
}


def refusals(value: object, mapping: dict[str, Any], path: str) -> list[str]:
    """Return why Elasticsearch would refuse or lose something of a document."""
    if value is None or mapping.get("enabled") is False:
        return []
    if isinstance(value, list):
        return [fault for each in value for fault in refusals(each, mapping, path)]
    if "properties" not in mapping:
        is_other = mapping.get("value", value) != value  # than the only one allowed
        fits = _fits(value, mapping["type"]) and not is_other
        return [] if fits else [f"{path}: {mapping['type']}"]
    if not isinstance(value, dict):
        return [f"{path}: no object"]
    known = mapping["properties"]
    return [f"{path}.{name}: not mapped" for name in value if name not in known] + [
        fault
        for name, below in value.items()
        if name in known
        for fault in refusals(below, known[name], f"{path}.{name}")
    ]


def _fits(value: object, kind: str) -> bool:
    if kind == "date":
        try:
            convert(value, datetime)
        except ValidationError:
            return False
    is_flag = isinstance(value, bool) and kind != "boolean"
    return isinstance(value, TYPES[kind]) and not is_flag


def test_elastic_takes_every_kind_of_event_whole() -> None:
    found = {e.type: refusals(elastic.document(e), MAPPING, "") for e in published()}

    assert {name: faults for name, faults in found.items() if faults} == {}


def test_elastic_maps_the_schema_and_nothing_else() -> None:
    own = set(_paths("", MAPPING["properties"]["sebridge"]))
    left_out = {"data.previous", "data.document"}
    known = {path for path in schema_paths() if not path.startswith("data.event.")}

    assert own == known - left_out


def test_elastic_maps_no_field_that_is_never_sent() -> None:
    ecs = {n: m for n, m in MAPPING["properties"].items() if n != "sebridge"}
    used = {
        path for event in published() for path in _used("", elastic.document(event))
    }

    assert set(_paths("", {"properties": ecs})) <= used


def _used(above: str, value: dict[str, Any]) -> list[str]:
    found = []
    for name, below in value.items():
        found.append(f"{above}{name}")
        if isinstance(below, dict):
            found += _used(f"{above}{name}.", below)
    return found


@pytest.mark.parametrize(
    ("field", "value"),
    [("severitynumber", "ERROR"), ("time", "yesterday"), ("data", 1), ("new", 1)],
)
def test_checker_of_the_mapping_can_refuse(field: str, value: object) -> None:
    event = elastic.document(published()[0])
    event["sebridge"] = {**sent()[0], field: value}

    assert refusals(event, MAPPING, "") != []


def test_elastic_takes_whatever_imds_says_of_an_event() -> None:
    event = sent()[0]
    event["data"]["event"] |= {"Resources": {"a": [1]}, "EventId": 7, "New": [{}]}
    document = elastic.document(CloudEvent.from_json(json.dumps(event).encode()))

    assert refusals(document, MAPPING, "") == []


# -- Elastic: rules and dashboard --------------------------------------------------

ELASTIC_RULES = {
    rule["name"]: rule
    for line in (HERE / "elastic" / "rules.ndjson").read_text().splitlines()
    for rule in [json.loads(line)]
}
OBJECTS = [
    json.loads(line)
    for line in (HERE / "elastic" / "dashboard.ndjson").read_text().splitlines()
]
MAPPED = set(_paths("", MAPPING))
_NO_FIELD = {"and", "or", "not", "true", "false"}


def fields_of(query: str) -> set[str]:
    """Return the fields of a query in KQL of Kibana."""
    bare = re.sub(r'"[^"]*"', '""', query)
    return set(re.findall(r"[\w.@]+(?=\s*(?::|<|>))", bare)) - _NO_FIELD


@pytest.mark.parametrize("name", ELASTIC_RULES)
def test_elastic_rule_has_the_form_of_one_and_fields_that_are_mapped(name: str) -> None:
    rule = ELASTIC_RULES[name]
    groups = rule.get("alert_suppression", {}).get("group_by", [])

    assert rule["type"] in {"query", "threshold", "new_terms", "esql"}
    assert rule["language"] == ("esql" if rule["type"] == "esql" else "kuery")
    assert str(UUID(rule["rule_id"])) == rule["rule_id"]
    assert rule["severity"] in {"low", "medium", "high", "critical"}
    assert 0 < rule["risk_score"] <= 100
    assert not rule["enabled"], "who imports it looks at it first"
    assert re.fullmatch(r"now-\d+[mhd]", rule["from"])
    assert {*groups, *rule.get("new_terms_fields", [])} <= MAPPED
    if rule["type"] != "esql":
        assert rule["query"].count("(") == rule["query"].count(")")
        assert fields_of(rule["query"]) <= MAPPED


def test_elastic_rules_are_those_of_sentinel_and_one_more() -> None:
    names = {rule["name"] for rule in RULES.values()}
    other = {"A bridge has new dead letters": "A bridge has dead letters"}
    renamed = {other.get(name, name) for name in names}

    assert set(ELASTIC_RULES) - renamed == {"An approval did not reach IMDS"}
    assert renamed <= set(ELASTIC_RULES)


def test_fields_of_a_query_are_found() -> None:
    query = 'event.action:("a:b" or "c") and not x.y:true and n < 5'

    assert fields_of(query) == {"event.action", "x.y", "n"}


def test_dashboard_is_whole_and_its_fields_are_mapped() -> None:
    known = {(found["type"], found["id"]) for found in OBJECTS}
    used = {
        aggregation["params"]["field"]
        for found in OBJECTS
        if found["type"] == "visualization"
        for aggregation in json.loads(found["attributes"]["visState"])["aggs"]
    }
    (board,) = [found for found in OBJECTS if found["type"] == "dashboard"]
    panels = json.loads(board["attributes"]["panelsJSON"])

    wanted = {(ref["type"], ref["id"]) for f in OBJECTS for ref in f["references"]}
    assert wanted <= known
    assert used <= MAPPED
    assert {p["panelRefName"] for p in panels} == {
        r["name"] for r in board["references"]
    }


# -- a week of events --------------------------------------------------------------

WEEK = [json.loads(line) for line in fleet_week.FILE.read_text().splitlines()]


def test_week_is_what_its_module_makes() -> None:
    """Else: ``python -m tests.infra.fleet_week``."""
    page = fleet_week.PAGE.read_text(encoding="utf-8")

    assert fleet_week.FILE.read_text(encoding="utf-8") == fleet_week.lines()
    assert fleet_week.with_findings(page) == page


def test_events_of_the_week_keep_to_the_schema() -> None:
    validator = Draft202012Validator(json.loads(json_schema.text("event")))

    assert [e.message for event in WEEK for e in validator.iter_errors(event)] == []


def test_every_rule_finds_something_in_the_week() -> None:
    found = fleet_week.findings(WEEK)

    assert {name for name, what in found.items() if not what} == set()
    assert set(RULES) <= set(found)
    assert {len(what) for what in found.values()} <= {1, 2}


def test_every_field_of_every_rule_is_in_the_week() -> None:
    paths = {path for event in WEEK for path in _used("", event)}
    of_sentinel = {
        f"data{name}"
        for text in KQL.values()
        for name in re.findall(r"\bData((?:\.\w+)+)", text)
    }
    of_splunk = {
        name
        for section in SEARCHES.sections()
        for name in re.findall(r"\bdata(?:\.\w+)+", SEARCHES[section]["search"])
    }
    documents = [CloudEvent.from_json(json.dumps(event).encode()) for event in WEEK]
    ecs = {path for each in documents for path in _used("", elastic.document(each))}
    of_elastic = {
        name
        for rule in ELASTIC_RULES.values()
        if rule["type"] != "esql"
        for name in fields_of(rule["query"])
    }

    # A mark of tests, which are no part of a week.
    assert of_sentinel | of_splunk <= paths | {"data.test"}
    assert of_elastic <= ecs | {"sebridge.data.test"}


def test_sample_of_cef_is_a_line_of_the_week() -> None:
    page = (HERE.parents[1] / "config" / "sinks" / "syslog.md").read_text()
    sample = re.findall(r"```text\n(CEF:.*)\n```", page)
    events = [CloudEvent.from_json(json.dumps(event).encode()) for event in WEEK]

    assert [as_cef(event, version="0.1.0") for event in events].count(sample[0]) == 1

"""Dashboard and alert rules: metrics that the bridge has, and all of them."""

import json
import re
import shutil
import subprocess
from itertools import combinations
from pathlib import Path

import pytest
import yaml

from bridge.events.vocabulary import COMMAND_OUTCOMES, DISRUPTIVE, EVENT_TYPES
from bridge.telemetry.metrics import FAILURES, OUTCOMES, TYPES, Metrics

HERE = Path(__file__).parents[2] / "infra" / "prometheus"
DASHBOARD = json.loads((HERE / "dashboard.json").read_text())
RULES = yaml.safe_load((HERE / "alerts.yaml").read_text())["groups"][0]["rules"]
FROM_PROMETHEUS = {"job", "instance"}
LABEL_VALUES = {
    "outcome": {
        *(*OUTCOMES, *COMMAND_OUTCOMES),
        *("ok", "delivered", "postponed", "dead", "discarded"),
    },
    "event_type": set(TYPES),
    "reason": set(FAILURES),
}

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="promtool is missing: apt-get install prometheus",
)


def panels() -> list[dict[str, object]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def queries() -> list[str]:
    """Return every query of the dashboard, its variables filled in."""
    found = [t["expr"] for p in DASHBOARD["panels"] for t in p.get("targets", ())]
    return [e.replace("$__rate_interval", "5m") for e in found]


def expressions() -> list[str]:
    return [*queries(), *(rule["expr"] for rule in RULES)]


def exported() -> dict[str, set[str]]:
    """Return the samples of ``/metrics`` with the names of their labels."""
    metrics = Metrics(["bus"], "1.2.3", ["drain"], has_traffic=True)
    metrics.scheduled_events.labels("Reboot", "Scheduled")
    labels: dict[str, set[str]] = {}
    for family in metrics.registry.collect():
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    return labels


def named(expression: str) -> dict[str, str]:
    """Return the metrics of an expression, each with what stands in its braces."""
    found = re.findall(r"\b(sebridge_\w+|up)\b(?:\{([^}]*)\})?", expression)
    return dict(found)


@pytest.mark.parametrize("expression", expressions())
def test_metrics_and_labels_are_those_of_the_bridge(expression: str) -> None:
    known = {**exported(), "up": set()}
    metrics = named(expression)

    assert metrics
    for metric, braces in metrics.items():
        assert metric in known
        for label, value in re.findall(r'(\w+)[!=]~?"([^"]*)"', braces):
            assert label in known[metric] | FROM_PROMETHEUS
            values = set(value.split("|"))
            assert value.startswith("$") or values <= LABEL_VALUES.get(label, values)


def test_event_is_disruptive_for_the_dashboard_as_for_the_bridge() -> None:
    (left_out,) = {
        types
        for query in queries()
        for types in re.findall(r'event_type!~"([^"]*)"', query)
    }

    assert set(left_out.split("|")) == {*EVENT_TYPES, "other"} - {*DISRUPTIVE}


def test_variables_of_the_dashboard_ask_for_metrics_of_the_bridge() -> None:
    asked = [v["definition"] for v in DASHBOARD["templating"]["list"][1:]]

    for query in asked:
        metric, label = re.findall(r"(sebridge_\w+).*, (\w+)\)", query)[0]
        assert label in exported()[metric] | FROM_PROMETHEUS


def test_every_metric_is_on_the_dashboard() -> None:
    shown = {metric for query in queries() for metric in named(query)}
    known = exported()
    own = {
        next((b for b in (f"{stem}_bucket", f"{stem}_sum") if b in known), name)
        for name in known
        for stem in (re.sub(r"_(count|sum)$", "", name),)
    }

    assert own <= shown


def test_alerts_say_what_it_is_about_and_how_grave() -> None:
    for rule in RULES:
        assert set(rule["annotations"]) == {"summary", "description"}, rule["alert"]
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}


def test_every_alert_has_a_unit_test() -> None:
    tests = (HERE / "alerts.test.yaml").read_text()

    assert [r["alert"] for r in RULES if r["alert"] not in tests] == []


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    boxes = [p["gridPos"] for p in DASHBOARD["panels"]]
    ids = [p["id"] for p in DASHBOARD["panels"]]

    assert len(set(ids)) == len(ids)
    assert all(box["x"] + box["w"] <= 24 for box in boxes)
    for a, b in combinations(boxes, 2):
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        assert beside or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]


def test_panels_say_what_they_show() -> None:
    for panel in panels():
        assert panel["title"]
        assert panel["description"], panel["title"]
        assert panel["targets"], panel["title"]


@pytest.mark.slow
@needs_promtool
def test_rules_pass_promtool() -> None:
    for arguments in (
        ["check", "rules", "alerts.yaml"],
        ["test", "rules", "alerts.test.yaml"],
    ):
        promtool(*arguments, cwd=HERE)


@needs_promtool
def test_queries_of_the_dashboard_pass_promtool(tmp_path: Path) -> None:
    rules = [{"record": f"q:{n}", "expr": q} for n, q in enumerate(queries())]
    (tmp_path / "q.yaml").write_text(
        json.dumps({"groups": [{"name": "dashboard", "rules": rules}]})
    )

    promtool("check", "rules", "--lint=none", "q.yaml", cwd=tmp_path)


def promtool(*arguments: str, cwd: Path) -> None:
    """Run it; what it finds is what the test fails with."""
    ran = subprocess.run(  # noqa: S603 - our own arguments
        ["promtool", *arguments],  # noqa: S607 - wherever it is installed
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr

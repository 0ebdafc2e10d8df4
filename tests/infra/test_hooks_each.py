"""What each of the hooks does, beside what holds for all of them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.infra.hook_stage import EVENT, PREPARE, RESTORE, Stage
from tests.infra.hook_worlds import (
    SYSTEMCTL,
    etcd,
    kubernetes,
    nomad,
    pacemaker,
    part,
    parts,
    patroni,
    services,
    slurm,
    sqlserver,
)


def test_services_are_stopped_in_order_and_started_in_the_opposite(
    tmp_path: Path,
) -> None:
    stage = services(tmp_path)

    stage.run(PREPARE)
    stage.run(RESTORE)

    changes = [call.split()[1:] for call in stage.called if "is-active" not in call]
    assert changes == [
        ["stop", "--", "web.service"],
        ["stop", "--", "app.service"],
        ["start", "--", "app.service"],
        ["start", "--", "web.service"],
    ]


def test_service_that_did_not_run_is_not_started(tmp_path: Path) -> None:
    stage = services(tmp_path)
    (stage.world / "app.service").unlink()

    stage.run(PREPARE)
    stage.run(RESTORE)

    assert "systemctl start -- web.service" in stage.called
    assert "systemctl start -- app.service" not in stage.called


def test_service_that_cannot_be_started_is_started_at_the_next_try(
    tmp_path: Path,
) -> None:
    stage = services(tmp_path)
    stage.run(PREPARE)
    stage.tool("systemctl", '[ "$3" != web.service ]')
    assert stage.tried(RESTORE).returncode == 1
    assert stage.marker == "web.service\n"
    stage.tool("systemctl", SYSTEMCTL)
    stage.forget()

    stage.run(RESTORE)

    assert stage.called == ["systemctl start -- web.service"]


def test_node_that_somebody_else_cordoned_stays_cordoned(tmp_path: Path) -> None:
    stage = kubernetes(tmp_path)
    (stage.world / "cordoned").write_text("true")

    assert "cordoned by somebody else" in stage.run(PREPARE)
    stage.run(RESTORE)

    assert [call for call in stage.called if "drain vm7" in call]
    assert (stage.world / "cordoned").exists()


def test_node_says_why_and_takes_it_back(tmp_path: Path) -> None:
    """By a taint, a condition and an Event; written down, so also after a restart."""
    stage = kubernetes(tmp_path)
    stage.settings += "TELL=yes"
    when = "2026-11-27T12:00:00Z"

    stage.run(PREPARE, SEBRIDGE_NOT_BEFORE=when)

    taint = (stage.world / "taint").read_text().strip()
    assert taint == "sebridge/scheduled-maintenance=Reboot:NoSchedule"
    (condition,) = condition_of(stage)
    assert (condition["type"], condition["status"]) == ("ScheduledMaintenance", "True")
    assert condition["reason"] == "Reboot"
    assert condition["message"] == f"not before {when}, EventId E-1"
    event = json.loads((stage.world / "events").read_text())
    assert (event["kind"], event["reason"]) == ("Event", "ScheduledMaintenance")
    assert event["involvedObject"]["name"] == "vm7"
    assert "taint" in stage.called[0], "before the drain"

    stage.run(RESTORE)

    assert condition_of(stage)[0]["status"] == "False"
    assert "kubectl taint node vm7 sebridge/scheduled-maintenance-" in stage.called
    assert "kubectl uncordon vm7" in stage.called
    assert stage.marker == ""


def condition_of(stage: Stage) -> list[dict[str, str]]:
    found = json.loads((stage.world / "condition").read_text())
    listed: list[dict[str, str]] = found["status"]["conditions"]
    return listed


def test_words_of_an_event_cannot_leave_their_place(tmp_path: Path) -> None:
    stage = kubernetes(tmp_path)
    stage.settings += "TELL=yes"

    stage.run(PREPARE, SEBRIDGE_EVENT_TYPE='Re"boot$(x)', SEBRIDGE_EVENT_ID='E"},{"1')

    (condition,) = condition_of(stage)
    assert condition["reason"] == "Rebootx"
    assert condition["message"].endswith("Z, EventId E1")


def test_node_is_only_cordoned(tmp_path: Path) -> None:
    stage = kubernetes(tmp_path)
    stage.settings += "DRAIN=no"

    stage.run(PREPARE)

    assert "kubectl cordon vm7" in stage.called
    assert not [call for call in stage.called if "drain" in call]


def test_pods_that_go_are_named(tmp_path: Path) -> None:
    stage = kubernetes(tmp_path)
    (stage.world / "pods").write_text("web   front-1\ndb    store-0\n")

    assert "2 pods are on vm7: web/front-1, db/store-0" in stage.run(PREPARE)


def test_freeze_evicts_the_pods_of_a_label_alone(tmp_path: Path) -> None:
    stage = kubernetes(tmp_path)
    stage.settings += "EVICT=latency=low"
    (stage.world / "pods").write_text("web   front-1\n")

    said = stage.run(PREPARE, SEBRIDGE_EVENT_TYPE="Freeze")

    assert "evicted: web/front-1" in said
    (asked,) = [call for call in stage.called if "--raw" in call]
    assert "/api/v1/namespaces/web/pods/front-1/eviction" in asked
    assert any("--selector latency=low" in call for call in stage.called)
    assert not [call for call in stage.called if "cordon" in call]
    stage.run(PREPARE, SEBRIDGE_EVENT_TYPE="Reboot")
    assert "kubectl cordon vm7" in stage.called


def test_pod_that_may_not_be_evicted_is_tried_again(tmp_path: Path) -> None:
    stage = kubernetes(tmp_path)
    stage.settings += "EVICT=latency=low"
    (stage.world / "pods").write_text("web   front-1\n")
    (stage.world / "stuck").touch()

    found = stage.tried(PREPARE, SEBRIDGE_EVENT_TYPE="Freeze")

    assert (found.returncode, "could be evicted" in found.stderr) == (75, True)


@pytest.mark.parametrize("make", [kubernetes, slurm])
def test_shadow_only_says_what_it_would_do(
    make: Callable[[Path], Stage], tmp_path: Path
) -> None:
    stage = make(tmp_path)
    stage.settings += "SHADOW=yes\nTELL=yes"

    said = stage.run(PREPARE)

    assert "shadow: nothing is changed" in said
    assert "would run" in said
    changing = ("cordon", "drain vm7", "taint", "patch", "create", "update")
    assert not [c for c in stage.called if any(word in c for word in changing)]
    assert stage.marker == ""


@pytest.mark.parametrize("make", [kubernetes, slurm, nomad])
def test_check_must_succeed_before_the_node_is_given_back(
    make: Callable[[Path], Stage], tmp_path: Path
) -> None:
    """Such as a test of the GPUs."""
    stage = make(tmp_path)
    stage.settings += f"CHECK='test -f {stage.world}/healthy'"
    stage.run(PREPARE)

    found = stage.tried(RESTORE)
    assert (found.returncode, "has not succeeded" in found.stderr) == (75, True)
    assert stage.marker
    (stage.world / "healthy").touch()
    stage.run(RESTORE)
    assert stage.marker == ""


@pytest.mark.parametrize(
    ("notice", "options"),
    [
        ("600", "--timeout=300s"),
        ("100", "--timeout=95s"),
        ("30", "--grace-period=13 --timeout=25s"),
        ("-4", "--grace-period=1 --timeout=1s"),
        ("", "--timeout=300s"),
        ("x[$(false)]", "--timeout=300s"),
    ],
)
def test_drain_takes_no_longer_than_the_notice(
    notice: str, options: str, tmp_path: Path
) -> None:
    stage = kubernetes(tmp_path)

    stage.run(PREPARE, SEBRIDGE_NOTICE_SECONDS=notice)

    drain = "kubectl drain vm7 --ignore-daemonsets --delete-emptydir-data"
    assert f"{drain} {options}" in stage.called


@pytest.mark.parametrize("make", [kubernetes, nomad, pacemaker, patroni])
def test_machine_that_is_not_empty_in_time_is_tried_again(
    make: Callable[[Path], Stage], tmp_path: Path
) -> None:
    stage = make(tmp_path)
    (stage.world / "stuck").touch()

    assert stage.tried(PREPARE).returncode == 75

    (stage.world / "stuck").unlink()
    stage.run(PREPARE)
    stage.run(RESTORE)
    assert not stage.marker


def test_node_in_standby_by_somebody_else_stays_so(tmp_path: Path) -> None:
    stage = pacemaker(tmp_path)
    (stage.world / "standby").write_text("on\n")

    assert "somebody else" in stage.run(PREPARE)
    stage.run(RESTORE)

    assert (stage.world / "standby").read_text() == "on\n"


def test_standby_outlives_a_reboot(tmp_path: Path) -> None:
    stage = pacemaker(tmp_path)

    stage.run(PREPARE)

    assert "crm_standby --node vm7 --update on --lifetime forever" in stage.called
    assert "crm_resource --wait --timeout=300s" in stage.called


@pytest.mark.parametrize(
    ("type_", "code", "left"), [("Preempt", 0, ""), ("Reboot", 75, "41\n42\n")]
)
def test_jobs_are_queued_again_where_that_is_asked_for(
    type_: str, code: int, left: str, tmp_path: Path
) -> None:
    stage = slurm(tmp_path)
    (stage.world / "jobs").write_text("41\n42\n")

    found = stage.tried(PREPARE, SEBRIDGE_EVENT_TYPE=type_, SEBRIDGE_NOTICE_SECONDS="5")

    assert found.returncode == code, found.stderr
    assert (stage.world / "jobs").read_text() == left


def test_node_drained_by_somebody_else_stays_so(tmp_path: Path) -> None:
    stage = slurm(tmp_path)
    (stage.world / "state").write_text("IDLE+DRAIN")
    (stage.world / "reason").write_text("bad disk")

    assert "somebody else" in stage.run(PREPARE)
    stage.run(RESTORE)

    assert (stage.world / "reason").read_text() == "bad disk"


def test_node_drained_anew_by_somebody_else_is_not_resumed(tmp_path: Path) -> None:
    stage = slurm(tmp_path)
    stage.run(PREPARE)
    (stage.world / "reason").write_text("bad disk")

    assert "not as this hook left it" in stage.run(RESTORE)

    assert "DRAIN" in (stage.world / "state").read_text()


def test_nomad_node_that_somebody_else_drained_stays_so(tmp_path: Path) -> None:
    stage = nomad(tmp_path)
    (stage.world / "eligibility").write_text("ineligible")

    assert "drained by somebody else" in stage.run(PREPARE)
    stage.run(RESTORE)

    assert (stage.world / "eligibility").read_text() == "ineligible"


def test_nomad_node_has_the_notice_to_get_empty(tmp_path: Path) -> None:
    stage = nomad(tmp_path)

    stage.run(PREPARE, SEBRIDGE_NOTICE_SECONDS="100")

    (drain,) = [call for call in stage.called if "-enable" in call]
    assert drain.endswith("-self -yes -deadline 95s -m sebridge: Reboot E-1")


@pytest.mark.parametrize(
    ("more", "given"),
    [
        ("", '{"leader":"vm7"}'),
        ("TARGET=vm9", '{"leader":"vm7","candidate":"vm9"}'),
    ],
)
def test_patroni_is_asked_to_switch_over_and_waited_for(
    more: str, given: str, tmp_path: Path
) -> None:
    stage = patroni(tmp_path, more)

    stage.run(PREPARE)

    (asked,) = [call for call in stage.called if call.endswith("/switchover")]
    assert f"--data {given} http://127.0.0.1:8008/switchover" in asked
    assert "stays as it is" in stage.run(RESTORE)


@pytest.mark.parametrize("make", [patroni, etcd])
def test_member_that_does_not_lead_has_nothing_to_do(
    make: Callable[[Path], Stage], tmp_path: Path
) -> None:
    stage = make(tmp_path)
    (stage.world / "leader").write_text("another")

    assert "nothing to do" in stage.run(PREPARE)

    assert stage.marker == ""


@pytest.mark.parametrize("make", [patroni, etcd])
def test_cluster_that_does_not_answer_is_tried_again(
    make: Callable[[Path], Stage], tmp_path: Path
) -> None:
    stage = make(tmp_path)
    (stage.world / "down").touch()

    found = stage.tried(PREPARE)

    assert (found.returncode, "does not answer" in found.stderr) == (75, True)


def test_names_that_are_no_names_are_not_sent_to_patroni(tmp_path: Path) -> None:
    stage = patroni(tmp_path, "TARGET='a\"b'")

    assert stage.tried(PREPARE).returncode == 1
    assert stage.called == []


@pytest.mark.parametrize(
    ("more", "down", "leader"),
    [("", "", "b"), ("", "b", "c"), ("TARGET=vm9", "", "c"), ("TARGET=vm6", "", "10")],
)
def test_member_that_can_leads_etcd(
    more: str, down: str, leader: str, tmp_path: Path
) -> None:
    """Not itself, no learner, none that was not started."""
    stage = etcd(tmp_path, more)
    (stage.world / f"{down}.down").touch()

    found = stage.tried(PREPARE)

    assert (stage.world / "leader").read_text().strip() == leader
    assert found.returncode == (75 if leader == "10" else 0), found.stderr


def test_group_fails_over_to_a_replica_that_loses_nothing(tmp_path: Path) -> None:
    stage = sqlserver(tmp_path)

    stage.run(PREPARE)

    failover = "-Q SET NOCOUNT ON; ALTER AVAILABILITY GROUP [ag1] FAILOVER"
    calls = [call for call in stage.called if "FAILOVER" in call]
    assert calls == [f"sqlcmd -S sql-b -E -C -b -l 10 -h -1 -W {failover}"]


def test_chosen_replica_is_taken_only_where_it_is_ready(tmp_path: Path) -> None:
    stage = sqlserver(tmp_path, "TARGET=sql-c")
    stage.run(PREPARE)
    assert (stage.world / "primary").read_text() == "sql-c\n"

    (stage.world / "primary").write_text("sql-a")
    (stage.world / "ready").write_text("sql-b\n")
    found = stage.tried(PREPARE)

    assert found.returncode == 75
    assert "TARGET" not in found.stderr
    assert "sql-c is not" in found.stderr
    assert (stage.world / "primary").read_text() == "sql-a"


def test_replica_that_is_secondary_has_nothing_to_do(tmp_path: Path) -> None:
    stage = sqlserver(tmp_path)
    (stage.world / "primary").write_text("sql-b")

    assert "not primary" in stage.run(PREPARE)

    assert not stage.marker


@pytest.mark.parametrize("given", [PREPARE, RESTORE])
def test_role_that_is_not_settled_is_asked_for_again(
    given: dict[str, str], tmp_path: Path
) -> None:
    """Such as while a cluster elects: it may be primary the next moment."""
    stage = sqlserver(tmp_path, "FAIL_BACK=yes")
    stage.run(PREPARE)
    marked = stage.marker
    (stage.world / "resolving").touch()

    found = stage.tried(given)

    assert found.returncode == 75
    assert "is not settled yet" in found.stderr
    assert stage.marker == marked


def test_group_comes_back_only_where_that_is_asked_for(tmp_path: Path) -> None:
    stage = sqlserver(tmp_path)
    stage.run(PREPARE)
    stage.run(RESTORE)
    assert (stage.world / "primary").read_text() == "sql-b\n"

    (stage.world / "primary").write_text("sql-a")
    stage.settings += "FAIL_BACK=yes"
    stage.run(PREPARE)
    (stage.world / "lagging").touch()
    assert stage.tried(RESTORE).returncode == 75
    (stage.world / "lagging").unlink()
    stage.run(RESTORE)
    assert (stage.world / "primary").read_text() == "sql-a\n"


def test_group_whose_name_would_be_a_statement_is_refused(tmp_path: Path) -> None:
    stage = sqlserver(tmp_path, "GROUP='x]; DROP DATABASE y'")

    assert stage.tried(PREPARE).returncode == 1
    assert stage.called == []


def test_parts_run_in_order_and_each_is_given_the_event(tmp_path: Path) -> None:
    stage = parts(tmp_path)
    for name in ("20-second", "10-first"):
        part(stage, f"prepare/{name}", f'echo "{name} $(cat)" >>{stage.world}/ran')
    part(stage, "prepare/15-note.bak", "exit 9")
    part(stage, "prepare/16-text", "exit 9", 0o644)
    part(stage, "restore/10-first", f"echo restored >>{stage.world}/ran")

    stage.run(PREPARE)
    stage.run(RESTORE)

    ran = (stage.world / "ran").read_text().splitlines()
    assert ran == [f"10-first {EVENT}", f"20-second {EVENT}", "restored"]


def test_parts_do_not_restore_while_another_event_waits(tmp_path: Path) -> None:
    stage = parts(tmp_path)
    part(stage, "restore/10-first", f"echo restored >>{stage.world}/ran")
    stage.run(PREPARE)

    assert "E-2" in stage.run(RESTORE, SEBRIDGE_OTHER_EVENTS="E-2")

    assert not (stage.world / "ran").exists()
    stage.run(RESTORE)
    assert (stage.world / "ran").read_text() == "restored\n"


def test_first_part_that_fails_is_the_last(tmp_path: Path) -> None:
    stage = parts(tmp_path)
    part(stage, "prepare/10-first", "exit 75")
    part(stage, "prepare/20-second", f": >{stage.world}/ran")

    found = stage.tried(PREPARE)

    assert found.returncode == 75
    assert "prepare/10-first ended with exit code 75" in found.stderr
    assert not (stage.world / "ran").exists()
    assert stage.run(RESTORE)  # some of it may have been done
    assert not stage.marker


def test_part_that_others_may_write_is_not_run(tmp_path: Path) -> None:
    stage = parts(tmp_path)
    part(stage, "prepare/10-first", f": >{stage.world}/ran", 0o777)

    assert stage.tried(PREPARE).returncode == 1
    assert not (stage.world / "ran").exists()


def test_parts_are_only_named_in_a_test(tmp_path: Path) -> None:
    stage = parts(tmp_path)
    part(stage, "prepare/10-first", f": >{stage.world}/ran")

    assert "would run: " in stage.run(PREPARE, SEBRIDGE_TEST="1")

    assert not (stage.world / "ran").exists()
    assert not stage.state.exists()


def test_no_parts_are_no_failure(tmp_path: Path) -> None:
    stage = parts(tmp_path)
    (tmp_path / "parts" / "prepare").rmdir()

    assert "nothing is run" in stage.run(PREPARE)

"""What hooks are run among: a small world for each, of stand-ins that remember."""

from pathlib import Path

from tests.infra.hook_stage import Stage

SYSTEMCTL = """\
case $1 in
  is-active) [ -f "$WORLD/$4" ] ;;
  stop) rm "$WORLD/$3" ;;
  start) : >"$WORLD/$3" ;;
esac"""
KUBECTL = """\
case "$1 $2" in
  "get pods") cat "$WORLD/pods" 2>/dev/null || : ; exit ;;
  "create --raw") [ ! -f "$WORLD/stuck" ]; exit ;;
  "create --namespace") cat >>"$WORLD/events"; exit ;;
esac
case $1 in
  taint) case $4 in *-) rm -f "$WORLD/taint" ;; *) echo "$4" >"$WORLD/taint" ;; esac ;;
  patch) for last in "$@"; do :; done; printf '%s' "$last" >"$WORLD/condition" ;;
  get) cat "$WORLD/cordoned" 2>/dev/null || : ;;
  cordon) printf true >"$WORLD/cordoned" ;;
  uncordon) rm -f "$WORLD/cordoned" ;;
  drain) [ ! -f "$WORLD/stuck" ] ;;
esac"""
CRM_STANDBY = """\
case $* in
  *--query*) cat "$WORLD/standby" 2>/dev/null || echo off ;;
  *--update*) echo on >"$WORLD/standby" ;;
  *--delete*) rm -f "$WORLD/standby" ;;
esac"""
SCONTROL = """\
case $1 in
  show) echo "NodeName=vm7 State=$(cat "$WORLD/state") Reason=$(cat "$WORLD/reason")" ;;
  requeue) : >"$WORLD/jobs" ;;
  update)
    case $3 in
      State=DRAIN)
        echo MIXED+DRAIN >"$WORLD/state"
        echo "${4#Reason=}" >"$WORLD/reason" ;;
      State=RESUME) echo IDLE >"$WORLD/state" && : >"$WORLD/reason" ;;
    esac ;;
esac"""
NOMAD = """\
case "$1 $2 $3" in
  "node status "*) cat "$WORLD/eligibility" ;;
  "node drain -enable")
    printf ineligible >"$WORLD/eligibility"
    [ ! -f "$WORLD/stuck" ] ;;
  "node drain -monitor") [ ! -f "$WORLD/stuck" ] ;;
  "node drain -disable") printf eligible >"$WORLD/eligibility" ;;
esac"""
CURL = """\
[ ! -f "$WORLD/down" ] || exit 7
case $* in
  */leader) [ "$(cat "$WORLD/leader")" = vm7 ] && printf 200 || printf 503 ;;
  */switchover) [ ! -f "$WORLD/stuck" ] && echo vm8 >"$WORLD/leader" ;;
esac"""
ETCDCTL = """\
[ ! -f "$WORLD/down" ] || exit 1
case $* in
  *status*fields) printf '"MemberID" : 10\n"Leader" : %s\n' "$(cat "$WORLD/leader")" ;;
  *status) echo "127.0.0.1:2379, a, 3.5.21, 20 kB, true, false, 2, 4, 4, " ;;
  *list) cat "$WORLD/members" ;;
  *move-leader*)
    for last in "$@"; do :; done
    [ ! -f "$WORLD/$last.down" ] && echo "$last" >"$WORLD/leader" ;;
esac"""
MEMBERS = """\
a, started, vm7, http://10.0.0.7:2380, http://10.0.0.7:2379, false
1c, started, vm6, http://10.0.0.6:2380, http://10.0.0.6:2379, true
b, started, vm8, http://10.0.0.8:2380, http://10.0.0.8:2379, false
2d, unstarted, , http://10.0.0.5:2380, , false
c, started, vm9, http://10.0.0.9:2380, http://10.0.0.9:2379, false
"""
SQLCMD = """\
case $* in
  *FAILOVER*) [ ! -f "$WORLD/lagging" ] && echo "$2" >"$WORLD/primary" ;;
  *role_desc*is_local*)
    if [ -f "$WORLD/resolving" ]; then echo RESOLVING; exit; fi
    [ "$(cat "$WORLD/primary")" = sql-a ] && echo PRIMARY || echo SECONDARY ;;
  *is_failover_ready*) cat "$WORLD/ready" ;;
esac"""


def services(folder: Path) -> Stage:
    stage = Stage(folder, "stop-services", 'SERVICES="web.service app.service"')
    stage.tool("systemctl", SYSTEMCTL)
    (stage.world / "web.service").touch()
    (stage.world / "app.service").touch()
    return stage


def kubernetes(folder: Path) -> Stage:
    stage = Stage(folder, "kubernetes-drain", "NODE=vm7\nKUBECONFIG=/k")
    stage.tool("kubectl", KUBECTL)
    return stage


def pacemaker(folder: Path) -> Stage:
    stage = Stage(folder, "pacemaker-standby")
    stage.tool("crm_node", "echo vm7")
    stage.tool("crm_standby", CRM_STANDBY)
    stage.tool("crm_resource", '[ ! -f "$WORLD/stuck" ]')
    return stage


def slurm(folder: Path) -> Stage:
    stage = Stage(folder, "slurm-drain", "NODE=vm7\nWAIT=1")
    stage.tool("scontrol", SCONTROL)
    stage.tool("squeue", 'cat "$WORLD/jobs"')
    for name, text in (("state", "IDLE"), ("reason", ""), ("jobs", "")):
        (stage.world / name).write_text(text)
    return stage


def nomad(folder: Path) -> Stage:
    stage = Stage(folder, "nomad-drain")
    stage.tool("nomad", NOMAD)
    (stage.world / "eligibility").write_text("eligible")
    return stage


def patroni(folder: Path, more: str = "") -> Stage:
    stage = Stage(folder, "patroni-switchover", f"NODE=vm7\nWAIT=1\n{more}")
    stage.tool("curl", CURL)
    (stage.world / "leader").write_text("vm7")
    return stage


def etcd(folder: Path, more: str = "") -> Stage:
    stage = Stage(folder, "etcd-move-leader", more)
    stage.tool("etcdctl", ETCDCTL)
    (stage.world / "leader").write_text("10")
    (stage.world / "members").write_text(MEMBERS)
    return stage


def sqlserver(folder: Path, more: str = "") -> Stage:
    settings = f"GROUP=ag1\nINSTANCE=sql-a\nWAIT=1\n{more}"
    stage = Stage(folder, "sqlserver-failover", settings)
    stage.tool("sqlcmd", SQLCMD)
    (stage.world / "primary").write_text("sql-a")
    (stage.world / "ready").write_text("sql-b\nsql-c\n")
    return stage


def parts(folder: Path) -> Stage:
    stage = Stage(folder, "run-parts", f"PARTS={folder}/parts")
    for action in ("prepare", "restore"):
        (folder / "parts" / action).mkdir(parents=True)
    return stage


def part(stage: Stage, path: str, text: str, mode: int = 0o755) -> None:
    found = stage.world.parent / "parts" / path
    found.write_text(f"#!/bin/sh\n{text}\n")
    found.chmod(mode)


CHANGES = {  # each world, and a part of the call that changes it
    "stop-services": (services, "stop"),
    "kubernetes-drain": (kubernetes, "cordon"),
    "pacemaker-standby": (pacemaker, "--update on"),
    "nomad-drain": (nomad, "drain -enable"),
    "patroni-switchover": (patroni, "/switchover"),
    "etcd-move-leader": (etcd, "move-leader"),
    "slurm-drain": (slurm, "update NodeName=vm7 State=DRAIN"),
    "sqlserver-failover": (sqlserver, "FAILOVER"),
}

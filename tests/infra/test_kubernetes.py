"""The DaemonSet: what kustomize makes of it fits Kubernetes, and may do no more than
it must."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from bridge.configuration import load as config
from bridge.health.config import HttpConfig

ROOT = Path(__file__).parents[2]
HERE = ROOT / "infra" / "fleet" / "kubernetes"
HOOK = (ROOT / "infra" / "hooks" / "kubernetes-drain").read_text()
UID = 10001
# What each command of kubectl asks the API for: kubectl's pkg/drain (cordon.go,
# drain.go, filters.go). "get pods" is how drain sees that an evicted pod is gone.
CALLS = {
    "get": {("get", "nodes"), ("list", "pods")},
    "taint": {("get", "nodes"), ("patch", "nodes")},
    "patch": {("get", "nodes"), ("patch", "nodes/status")},
    "create": {("create", "events"), ("create", "pods/eviction")},
    "cordon": {("get", "nodes"), ("patch", "nodes")},
    "uncordon": {("get", "nodes"), ("patch", "nodes")},
    "drain": {
        ("get", "nodes"),
        ("patch", "nodes"),
        ("list", "pods"),
        ("get", "pods"),
        ("create", "pods/eviction"),
        ("get", "daemonsets"),
    },
}

pytestmark = pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="kubectl (with its kustomize) is missing"
)


def built(name: str) -> list[dict[str, Any]]:
    text = subprocess.run(  # noqa: S603 - fixed words
        ["kubectl", "kustomize", HERE / name],  # noqa: S607 - from the PATH
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return list(yaml.safe_load_all(text))


@pytest.fixture(scope="module")
def base() -> list[dict[str, Any]]:
    return built("base")


@pytest.fixture(scope="module")
def drain() -> list[dict[str, Any]]:
    return built("drain")


def only(found: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (one,) = (each for each in found if each["kind"] == kind)
    return one


def pod(found: list[dict[str, Any]]) -> dict[str, Any]:
    spec: dict[str, Any] = only(found, "DaemonSet")["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("name", ["base", "drain"])
@pytest.mark.parametrize("version", ["1.32", "1.36"])
def test_every_object_fits_the_schema_of_kubernetes(name: str, version: str) -> None:
    for one in built(name):
        kubernetes_validate.validate(one, version, strict=True)


def test_base_notifies_and_may_do_nothing_in_the_cluster(
    base: list[dict[str, Any]],
) -> None:
    kinds = sorted(one["kind"] for one in base)

    assert kinds == ["ConfigMap", "DaemonSet", "Namespace", "ServiceAccount"]
    assert only(base, "ServiceAccount")["automountServiceAccountToken"] is False
    assert pod(base)["automountServiceAccountToken"] is False


@pytest.mark.parametrize(
    ("name", "sinks"), [("base", ["bus"]), ("drain", ["bus", "drain"])]
)
def test_configuration_is_accepted_and_starts_no_event(
    name: str, sinks: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "bridge.toml"
    path.write_text(only(built(name), "ConfigMap")["data"]["bridge.toml"])

    found = config.load(path, {})

    assert [sink.name for sink in found.sinks] == sinks
    assert found.approvals is None


@pytest.mark.parametrize("name", ["base", "drain"])
def test_bridge_runs_without_rights_on_its_node(name: str) -> None:
    (bridge,) = pod(built(name))["containers"]
    security = bridge["securityContext"]

    assert security["runAsUser"] == security["runAsGroup"] == UID
    assert f"uid {UID}" in (ROOT / "infra/container/README.md").read_text().replace(
        "uid and gid", "uid"
    )
    assert security["runAsNonRoot"] is True
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}


def test_state_is_a_folder_of_the_node_that_the_bridge_may_write(
    base: list[dict[str, Any]],
) -> None:
    """Deliveries that wait outlive the pod."""
    (state,) = pod(base)["initContainers"]
    volumes = {one["name"]: one for one in pod(base)["volumes"]}

    assert volumes["state"]["hostPath"]["path"] == "/var/lib/sebridge"
    assert state["command"] == ["chown", f"{UID}:{UID}", "/var/lib/sebridge"]
    assert state["securityContext"]["capabilities"] == {
        "drop": ["ALL"],
        "add": ["CHOWN"],
    }
    mounts = {one["mountPath"] for one in pod(base)["containers"][0]["volumeMounts"]}
    assert mounts == {"/etc/sebridge/bridge.toml", "/var/lib/sebridge", "/tmp"}  # noqa: S108 - a mount


def test_bridge_is_asked_where_it_listens(base: list[dict[str, Any]]) -> None:
    host, _, port = HttpConfig().addresses[0].text.rpartition(":")
    (bridge,) = pod(base)["containers"]

    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = bridge[probe]["httpGet"]
        assert (asked["host"], asked["port"]) == (host, int(port))
    assert bridge["livenessProbe"]["httpGet"]["path"] == "/livez"  # IMDS may be away
    assert pod(base)["hostNetwork"] is True


def test_pods_are_on_all_linux_nodes_and_changed_one_by_one(
    base: list[dict[str, Any]],
) -> None:
    daemon = only(base, "DaemonSet")["spec"]

    assert pod(base)["nodeSelector"] == {"kubernetes.io/os": "linux"}
    assert pod(base)["tolerations"] == [{"operator": "Exists"}]
    assert daemon["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": 1}


def test_new_configuration_restarts_the_pods(base: list[dict[str, Any]]) -> None:
    name = only(base, "ConfigMap")["metadata"]["name"]
    volumes = {one["name"]: one for one in pod(base)["volumes"]}

    assert re.fullmatch(r"sebridge-\w{10}", name)
    assert volumes["config"]["configMap"]["name"] == name


def test_drain_has_the_rights_that_the_hook_uses_and_no_other(
    drain: list[dict[str, Any]],
) -> None:
    commands = set(re.findall(r"\bkubectl (\w+) ", HOOK))
    assert commands == set(CALLS)

    role = only(drain, "ClusterRole")
    granted = {
        (verb, resource)
        for rule in role["rules"]
        for verb in rule["verbs"]
        for resource in rule["resources"]
    }

    assert granted == set().union(*(CALLS[command] for command in commands))
    groups = {name: r["apiGroups"] for r in role["rules"] for name in r["resources"]}
    assert groups.pop("daemonsets") == ["apps"]
    assert set(map(tuple, groups.values())) == {("",)}


def test_rights_are_those_of_the_page_of_the_hook() -> None:
    page = (ROOT / "infra/hooks/README.md").read_text()
    text = " ".join(page.split("**`kubernetes-drain`**")[1].split("\n\n")[0].split())

    assert text.endswith(
        "`get` and `patch` on nodes, `get` and `list` on pods, `get` on daemonsets, "
        "and `create` on pods/eviction; for `TELL` also `patch` on nodes/status and "
        "`create` on events."
    )


def test_rights_are_for_the_account_of_the_pods(drain: list[dict[str, Any]]) -> None:
    account = only(drain, "ServiceAccount")["metadata"]
    (subject,) = only(drain, "ClusterRoleBinding")["subjects"]
    (condition,) = only(drain, "ValidatingAdmissionPolicy")["spec"]["matchConditions"]

    assert (subject["namespace"], subject["name"]) == (
        account["namespace"],
        account["name"],
    )
    assert pod(drain)["serviceAccountName"] == account["name"]
    assert pod(drain)["automountServiceAccountToken"] is True
    who = f"system:serviceaccount:{account['namespace']}:{account['name']}"
    assert f'== "{who}"' in condition["expression"]


def test_image_of_the_overlay_has_what_the_configuration_calls(
    drain: list[dict[str, Any]],
) -> None:
    text = (HERE / "drain" / "Dockerfile").read_text()
    ignored = (HERE / "drain" / "Dockerfile.dockerignore").read_text()
    copied = re.findall(r"(?m)^COPY --chmod=\d+ (.+) (/\S+/)$", text)
    there = {f"{to}{Path(f).name}" for files, to in copied for f in files.split()}

    command = "/etc/sebridge/hooks/kubernetes-drain"
    assert f'command = ["{command}"]' in only(drain, "ConfigMap")["data"]["bridge.toml"]
    assert {command, "/etc/sebridge/hooks/hook.sh"} <= there
    assert "KUBECONFIG:-/etc/sebridge/hooks/kubeconfig}" in HOOK
    assert "/etc/sebridge/hooks/kubeconfig" in there
    for files, _ in copied:
        for file in files.split():
            assert (ROOT / file).is_file()
            assert f"!{file}\n" in ignored
    assert {one["image"] for one in pod(drain)["containers"]} == {
        "REGISTRY/sebridge-drain:0.1.0"
    }


def test_kubectl_takes_the_kubeconfig_of_the_pod() -> None:
    """And the token's file, so that a renewed token is used."""
    said = subprocess.run(  # noqa: S603 - fixed words
        [
            *("kubectl", "config", "view", "--output", "yaml"),
            *("--kubeconfig", HERE / "drain" / "kubeconfig"),
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found = yaml.safe_load(said)

    assert found["current-context"] == "node"
    account = "/var/run/secrets/kubernetes.io/serviceaccount"
    assert found["users"][0]["user"] == {"tokenFile": f"{account}/token"}
    assert found["clusters"][0]["cluster"]["certificate-authority"] == (
        f"{account}/ca.crt"
    )

"""The policy: which VMs it is about, which lack something, and what they get."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.infra.policy_rules import VM, Rule, compare

ROOT = Path(__file__).parents[2]
POLICY = json.loads((ROOT / "infra/fleet/policy/policy.json").read_text())
BICEP = (ROOT / "infra/bicep/policy.bicep").read_text()
RULE = POLICY["policyRule"]
DETAILS = RULE["then"]["details"]
GALLERY = "/subscriptions/s/resourceGroups/r/providers/Microsoft.Compute/galleries/g"
APPLICATION = f"{GALLERY}/applications/sebridge"
IDENTITY = (
    "/subscriptions/s/resourceGroups/r/providers"
    "/Microsoft.ManagedIdentity/userAssignedIdentities/sebridge"
)
OTHER_IDENTITY = IDENTITY.replace("sebridge", "other")
CONTRIBUTOR = "9980e02c-c2be-4d73-94e8-173b1dc7cf3c"  # Virtual Machine Contributor
OPERATOR = "f1a07417-d97a-45cb-824c-7a7467783830"  # Managed Identity Operator
READER = "acdd72a7-3385-48ef-bd42-f606fba81ae7"


def assigned(**given: str) -> Rule:
    """Return the rule with the parameters of an assignment."""
    defaults = {
        name: one["defaultValue"]
        for name, one in POLICY["parameters"].items()
        if "defaultValue" in one
    }
    values = {
        **defaults,
        "osType": "Linux",
        "applicationId": APPLICATION,
        "version": "1.2.3",
        "identityId": IDENTITY,
        **given,
    }
    assert values.keys() == POLICY["parameters"].keys()
    return Rule(values)


def vm(
    *,
    kind: str = "Linux",
    size: str = "Standard_D2s_v5",
    identities: tuple[str, ...] = (IDENTITY,),
    applications: tuple[str, ...] = (f"{APPLICATION}/versions/1.0.0",),
    **more: Any,
) -> dict[str, Any]:
    """Return the model of a VM that has everything, unless told otherwise."""
    identity = {
        "type": "SystemAssigned, UserAssigned",
        "userAssignedIdentities": {name: {"clientId": "x"} for name in identities},
    }
    return {
        "type": VM,
        "name": "web-1",
        **({"identity": identity} if identities else {}),
        **{key: more.pop(key) for key in ("tags", "identity", "type") if key in more},
        "properties": {
            "hardwareProfile": {"vmSize": size},
            "storageProfile": {"osDisk": {"osType": kind}},
            "applicationProfile": {
                "galleryApplications": [
                    {"packageReferenceId": name} for name in applications
                ]
            },
            **more,
        },
    }


def verdict(resource: dict[str, Any], **given: str) -> str:
    rule = assigned(**given)
    if not rule.holds(RULE["if"], resource):
        return "not its business"
    is_whole = rule.holds(DETAILS["existenceCondition"], resource)
    return "compliant" if is_whole else "lacks it"


OFF: dict[str, Any] = {
    "instanceView": {"statuses": [{"code": "PowerState/deallocated"}]}
}
UPPER: dict[str, Any] = {"applications": (f"{APPLICATION.upper()}/versions/1.2.3",)}


@pytest.mark.parametrize(
    ("resource", "is_what"),
    [
        (vm(), "compliant"),
        (vm(**UPPER, identities=(IDENTITY.upper(),)), "compliant"),
        (vm(identities=(OTHER_IDENTITY, IDENTITY)), "compliant"),
        (vm(identities=()), "lacks it"),
        (vm(identities=(), identity={"type": "SystemAssigned"}), "lacks it"),
        (vm(identities=(OTHER_IDENTITY,)), "lacks it"),
        (vm(applications=()), "lacks it"),
        (vm(applicationProfile=None), "lacks it"),
        (vm(applications=(f"{APPLICATION}-windows/versions/1.0.0",)), "lacks it"),
        (vm(applications=(), **OFF), "lacks it"),
        (vm(**OFF), "compliant"),
        (vm(kind="Windows", applications=()), "not its business"),
        (vm(applications=(), tags={"sebridge-ring": "never"}), "not its business"),
        (vm(applications=(), tags={"sebridge-ring": "1"}), "lacks it"),
        (vm(applications=(), virtualMachineScaleSet={"id": "x"}), "not its business"),
        (vm(applications=(), type="Microsoft.Compute/disks"), "not its business"),
    ],
    ids=[
        *("has both", "other case", "two identities", "no identity"),
        *("system identity", "another identity", "no application", "no profile"),
        *("another application", "off", "off and has both", "windows", "left out"),
        *("in a ring", "scale set", "disk"),
    ],
)
def test_policy_knows_who_lacks_it(resource: dict[str, Any], is_what: str) -> None:
    assert verdict(resource) == is_what


def test_windows_has_an_assignment_of_its_own() -> None:
    lacking = vm(kind="Windows", applications=())

    assert verdict(lacking, osType="Windows") == "lacks it"
    assert verdict(vm(applications=()), osType="Windows") == "not its business"


def test_version_is_not_its_business() -> None:
    """Else it would bring a new version to all at once, past the rings."""
    assert verdict(vm(), version="9.9.9") == "compliant"


SIZES = [
    ("Standard_D2s_v5", "x64"),
    ("Standard_D2ps_v5", "arm64"),
    ("Standard_D2pls_v5", "arm64"),
    ("Standard_D2pds_v6", "arm64"),
    ("Standard_D2plds_v5", "arm64"),
    ("Standard_E4ps_v5", "arm64"),
    ("Standard_B2ps_v2", "arm64"),
    ("Standard_B2s", "x64"),
    ("Standard_NP10s", "x64"),
    ("Standard_M64ms_v2", "x64"),
]


@pytest.mark.parametrize(("size", "architecture"), SIZES)
def test_processor_is_known_by_the_size(
    size: str, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As rings.py tells it."""
    lacking = vm(size=size, applications=())
    other = {"x64": "arm64", "arm64": "x64"}[architecture]

    assert verdict(lacking, architecture=architecture) == "lacks it"
    assert verdict(lacking, architecture=other) == "not its business"
    monkeypatch.syspath_prepend(ROOT / "infra/fleet")
    vms = __import__("vms")
    sys.modules.pop("vms")
    assert bool(vms.ARM_SIZE.match(size)) == (architecture == "arm64")


def test_effect_can_be_to_show_only() -> None:
    assert RULE["then"]["effect"] == "[parameters('effect')]"
    assert "AuditIfNotExists" in POLICY["parameters"]["effect"]["allowedValues"]
    assert "param effect string = 'AuditIfNotExists'" in BICEP


def test_rights_are_those_that_the_change_needs() -> None:
    given = [one.rsplit("/", 1)[-1] for one in DETAILS["roleDefinitionIds"]]

    assert given == [CONTRIBUTOR, OPERATOR]
    assert "roles: policy.policyRule.then.details.roleDefinitionIds\n" in BICEP
    roles = (ROOT / "infra/bicep/modules/policyroles.bicep").read_text()
    assert "for role in roles: {" in roles
    assert "'${subscription().id}${role}'" in roles


def test_identity_of_the_policy_reads_the_gallery_and_no_more_of_its_group() -> None:
    """Else each deployment ends with LinkedAuthorizationFailed."""
    text = (ROOT / "infra/bicep/modules/galleryreader.bicep").read_text()
    reader = re.search(r"(?s)\nmodule reader (.*?)\n}\n", BICEP)

    assert READER in text
    assert "  scope: gallery\n" in text
    assert reader is not None
    assert " = {\n" in reader[1]  # whatever the effect is
    assert "scope: resourceGroup(application[2], application[4])" in reader[1]
    assert "galleryName: application[8]" in reader[1]
    waits = re.search(r"(?s)\nresource remediation .*?dependsOn: \[\n(.*?)\]", BICEP)
    assert waits is not None
    assert waits[1].split() == ["roles", "reader"]
    application = (
        "/subscriptions/SUB/resourceGroups/GROUP/providers/Microsoft.Compute"
        "/galleries/sebridge/applications/sebridge"
    )
    parts = application.split("/")
    assert (parts[2], parts[4], parts[8]) == ("SUB", "GROUP", "sebridge")


def test_assignment_gives_every_parameter() -> None:
    own = set(re.findall(r"(?m)^      (\w+): \{\n        value: \1\n", BICEP))

    assert own | {"exceptTag"} == set(POLICY["parameters"])


def templates() -> list[Any]:
    outer = DETAILS["deployment"]["properties"]["template"]
    return [outer, *(one["properties"]["template"] for one in outer["resources"])]


def test_template_is_given_what_it_asks_for() -> None:
    outer, read, apply = templates()
    given = DETAILS["deployment"]["properties"]["parameters"]

    assert given.keys() == outer["parameters"].keys()
    assert "parameters" not in read  # evaluated outside
    inner = outer["resources"][1]["properties"]
    assert inner["expressionEvaluationOptions"] == {"scope": "inner"}
    assert inner["parameters"].keys() == apply["parameters"].keys()
    for template in (outer, apply):
        text = json.dumps(template)
        for kind in ("parameters", "variables"):
            named = set(re.findall(rf"{kind}\('(\w+)'\)", text))
            assert template.get(kind, {}).keys() <= named


def test_change_keeps_what_the_vm_has() -> None:
    """Only identity and applications are sent; others of both are in what is sent."""
    (resource,) = templates()[2]["resources"]
    variables = templates()[2]["variables"]

    assert resource.keys() == {
        *("type", "apiVersion", "name", "location", "identity", "properties")
    }
    assert resource["properties"].keys() == {"applicationProfile"}
    assert "variables('others')" in json.dumps(resource["properties"])
    assert "variables('identities')" in variables["wanted"]
    assert "SystemAssigned, UserAssigned" in variables["identityType"]


def test_two_changes_in_one_group_do_not_meet() -> None:
    """Names of deployments are unique in a resource group."""
    for name in templates()[0]["variables"].values():
        assert "uniqueString(parameters('id'))" in name


@pytest.mark.parametrize(
    ("operator", "value", "wanted"),
    [
        ("like", "abc", "A*"),
        ("notLike", "abc", "b*"),
        ("exists", None, "false"),
        ("exists", "", "true"),
        ("notEquals", None, "never"),
        ("containsKey", {"A": 1}, "a"),
        ("notContains", None, "a"),
    ],
)
def test_conditions_compare_as_azure_does(
    operator: str, value: Any, wanted: str
) -> None:
    assert compare(operator, value, wanted)

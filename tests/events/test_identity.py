"""Who this VM is: names compared without case, a source that all neighbours share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.events.document import bare
from bridge.events.identity import Identity, IdentityConfig

COMPUTE = {
    "name": "web-3",
    "vmId": "13f56399",
    "resourceId": "/subscriptions/S/resourceGroups/RG/providers/Microsoft.Compute/x/y",
    "location": "westnorway",
    "vmScaleSetName": "Web",
    "subscriptionId": "S",
    "resourceGroupName": "RG",
    "tags": "a:b",
}


def test_metadata_is_read() -> None:
    assert Identity.from_metadata(COMPUTE) == Identity(
        vm_name="web-3",
        vm_id="13f56399",
        resource_id=COMPUTE["resourceId"],
        location="westnorway",
        vm_scale_set_name="Web",
        subscription_id="S",
        resource_group="RG",
    )


@pytest.mark.parametrize("value", ["", None, 7, ["x"]])
def test_metadata_that_says_nothing_counts_as_absent(value: object) -> None:
    assert Identity.from_metadata(dict.fromkeys(COMPUTE, value)) == Identity()


def test_reporter_of_an_event_is_read_as_far_as_it_says() -> None:
    found = Identity.from_reporter({"vmName": "web-3", "vmId": 7, "location": ""})

    assert found == Identity(vm_name="web-3")


def test_what_is_configured_stands_in_place_of_metadata() -> None:
    config = IdentityConfig(vm_name="other", location="here")
    found = Identity.from_metadata(COMPUTE).overridden(config)

    assert (found.vm_name, found.location, found.vm_id) == ("other", "here", "13f56399")


@pytest.mark.parametrize(
    ("identity", "is_known"),
    [
        (Identity(), False),
        (Identity(location="here"), False),
        (Identity(vm_name="a"), True),
        (Identity(vm_id="a"), True),
        (Identity(resource_id="a"), True),
    ],
)
def test_identity_is_known_by_name_or_id(identity: Identity, *, is_known: bool) -> None:
    assert identity.is_known == is_known


@pytest.mark.parametrize(
    ("config", "is_complete"),
    [
        (IdentityConfig(vm_name="a", vm_id="b", resource_id="c"), True),
        (IdentityConfig(vm_name="a", vm_id="b", location="c"), False),
    ],
)
def test_configuration_is_complete_without_metadata(
    config: IdentityConfig, *, is_complete: bool
) -> None:
    assert config.is_complete == is_complete


@pytest.mark.parametrize(
    ("identity", "source"),
    [
        (
            Identity(resource_id="/subscriptions/S/resourceGroups/RG/providers/x"),
            "/subscriptions/s/resourcegroups/rg/providers/microsoft.compute",
        ),
        (
            Identity(resource_id="/SUBSCRIPTIONS/S/RESOURCEGROUPS/RG"),
            "/subscriptions/s/resourcegroups/rg/providers/microsoft.compute",
        ),
        (
            Identity(subscription_id="S", resource_group="My Gruppe(ü)_1.a"),
            (
                "/subscriptions/s/resourcegroups/my%20gruppe(%C3%BC)_1.a"
                "/providers/microsoft.compute"
            ),
        ),
        (Identity(resource_id="/subscriptions/S"), None),
        (Identity(resource_id="nonsense", subscription_id="S"), None),
        (Identity(resource_group="RG"), None),
        (Identity(), None),
    ],
)
def test_source_is_the_resource_group(identity: Identity, source: str | None) -> None:
    assert identity.source == source


@given(st.text(min_size=1), st.text(min_size=1))
def test_source_is_always_plain_ascii(subscription: str, group: str) -> None:
    source = Identity(subscription_id=subscription, resource_group=group).source

    assert source is not None
    assert source.isascii()
    assert " " not in source
    assert source.count("/") == 6


@pytest.mark.parametrize(
    ("identity", "group"),
    [
        (Identity(vm_scale_set_name="Web", resource_group="RG"), "web"),
        (Identity(resource_group="RG"), "rg"),
        (Identity(resource_id="/subscriptions/S/resourceGroups/RG/x"), "rg"),
        (Identity(resource_id="nonsense"), None),
        (Identity(), None),
    ],
)
def test_group_is_the_scale_set_else_the_resource_group(
    identity: Identity, group: str | None
) -> None:
    assert identity.group == group


@pytest.mark.parametrize(
    ("name", "resources", "is_named"),
    [
        ("web-3", ["db-1", "WEB-3"], True),
        ("WEB-3", ["_web-3"], True),
        ("_web-3", ["web-3"], True),
        ("web-3", ["web-30", "__web-3"], False),
        ("web-3", [], False),
        (None, ["web-3"], None),
    ],
)
def test_own_name_is_found_without_case_and_underscore(
    name: str | None, resources: list[str], *, is_named: bool | None
) -> None:
    assert Identity(vm_name=name).is_named_in(resources) is is_named


def test_only_one_leading_underscore_is_passed_over() -> None:
    assert (bare("_A_b"), bare("__a"), bare("a")) == ("a_b", "_a", "a")


def test_placeholders_are_filled_in() -> None:
    identity = Identity(vm_id="13F", vm_name="Web-3", resource_group="RG")

    text = identity.expand("{vm_id}/{vm_name}/{group}/{vm_id}/{other}/{}")
    assert text == "13F/Web-3/rg/13F/{other}/{}"


def test_value_of_a_placeholder_is_never_expanded_again() -> None:
    identity = Identity(vm_id="{group}", vm_name="{vm_id}", resource_group="rg")

    assert identity.expand("{vm_id} {vm_name}") == "{group} {vm_id}"


@pytest.mark.parametrize("name", ["vm_id", "vm_name", "group"])
def test_placeholder_without_a_value_is_a_fault(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{{{name}}} in .* is not known here"):
        Identity().expand(f"x-{{{name}}}")

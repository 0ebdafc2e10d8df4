"""Reads the rule of an Azure Policy as Azure does, for the words that we use.

By Microsoft's page "Azure Policy definition structure policy rule": conditions, count,
and the functions of expressions. A word that is not known here is an error.
"""

import re
from collections.abc import Mapping
from typing import Any

VM = "Microsoft.Compute/virtualMachines"
# Aliases, and where the property stands in the model of a VM.
ALIASES = {
    f"{VM}/storageProfile.osDisk.osType": "properties.storageProfile.osDisk.osType",
    f"{VM}/sku.name": "properties.hardwareProfile.vmSize",
    f"{VM}/virtualMachineScaleSet.id": "properties.virtualMachineScaleSet.id",
    f"{VM}/applicationProfile.galleryApplications[*]": (
        "properties.applicationProfile.galleryApplications"
    ),
}
TOKEN = re.compile(r"\s*('(?:[^']|'')*'|[A-Za-z]+|[(),])")


class Rule:
    """A rule with the parameters of an assignment."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self.parameters = parameters

    def holds(self, condition: Any, resource: Any) -> bool:
        """Tell whether a condition of the rule is true for a resource."""
        if "allOf" in condition:
            return all(self.holds(one, resource) for one in condition["allOf"])
        if "anyOf" in condition:
            return any(self.holds(one, resource) for one in condition["anyOf"])
        if "not" in condition:
            return not self.holds(condition["not"], resource)
        return self._compare(condition, resource)

    def _compare(self, condition: Any, resource: Any) -> bool:
        rest = dict(condition)
        if "count" in rest:
            value: Any = self._count(rest.pop("count"), resource)
        elif "value" in rest:
            value = self.text(rest.pop("value"))
        else:
            value = self._field(self.text(rest.pop("field")), resource)
        ((operator, wanted),) = rest.items()
        return compare(operator, value, self.text(wanted))

    def _count(self, count: Any, resource: Any) -> int:
        alias = count["field"]
        part = f"{alias}."
        where = count["where"]
        found = 0
        for one in self._field(alias, resource) or []:
            key = where["field"].removeprefix(part)
            assert key != where["field"], "a field of another list"
            rest = {name: value for name, value in where.items() if name != "field"}
            ((operator, wanted),) = rest.items()
            found += compare(operator, one.get(key), self.text(wanted))
        return found

    def _field(self, name: str, resource: Any) -> Any:
        tag = re.fullmatch(r"tags\[(.+)\]", name)
        if tag:
            return (resource.get("tags") or {}).get(tag[1])
        path = ALIASES.get(name, name)
        assert "/" not in path, f"no such alias: {name}"
        for part in path.split("."):
            resource = (resource or {}).get(part)
        return resource

    def text(self, value: Any) -> Any:
        """Return what an expression in brackets says; all else as it is."""
        if not isinstance(value, str) or not value.startswith("["):
            return value
        tokens = TOKEN.findall(value.removeprefix("[").removesuffix("]"))
        return self._call(tokens)

    def _call(self, tokens: list[str]) -> Any:
        first = tokens.pop(0)
        if first.startswith("'"):
            return first[1:-1].replace("''", "'")
        assert tokens.pop(0) == "("
        given = []
        while tokens[0] != ")":
            given.append(self._call(tokens))
            if tokens[0] == ",":
                tokens.pop(0)
        tokens.pop(0)
        if first == "parameters":
            return self.parameters[given[0]]
        assert first == "concat", f"no such function: {first}"
        return "".join(given)


def compare(operator: str, value: Any, wanted: Any) -> bool:
    """Compare as a condition does: without regard to upper and lower case."""
    if operator == "exists":
        return (value is not None) == (str(wanted).lower() == "true")
    if operator.startswith("not"):
        positive = operator[3].lower() + operator[4:]
        return not compare(positive, value, wanted)
    if operator == "containsKey":
        return str(wanted).lower() in {key.lower() for key in value or {}}
    if isinstance(wanted, int):
        assert operator == "equals"
        return bool(value == wanted)
    left, right = str(value or "").lower(), wanted.lower()
    if operator == "like":
        assert right.count("*") <= 1, "like takes one wildcard"
        return re.fullmatch(re.escape(right).replace(r"\*", ".*"), left) is not None
    assert operator in {"equals", "contains"}, f"no such condition: {operator}"
    return right in left if operator == "contains" else left == right

"""Read the fields of a JSON object one by one, and collect faults.

A reader requests each field that it knows; close() then warns of all other fields. For
an invalid field, the reader gets the default, so that one pass finds every fault.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Self

from msgspec import Struct, field

_MOST_INT32 = 2**31 - 1
_LEAST_INT64, _MOST_INT64 = -(2**63), 2**63 - 1
# Years and months have no fixed length, so they are not accepted.
_DURATION = re.compile(
    r"P(?=.)(?:(?P<days>\d+)D)?"
    r"(?:T(?=.)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)


class ConfigError(ValueError):
    """An entity file cannot be used.

    Attributes:
        faults: every fault, with its place in the file.
    """

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)


class Findings(Struct, frozen=True):
    """The faults of a file, and what is ignored in it, each with its place."""

    faults: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class Fields:
    """The fields of one object.

    Args:
        fields: the object.
        place: the place of the object in the file, such as Queues[0].Properties.
        findings: collects the faults.
    """

    def __init__(
        self, fields: Mapping[str, object], place: str, findings: Findings
    ) -> None:
        self._fields = fields
        self._place = place
        self._findings = findings
        self._known: set[str] = set()

    @classmethod
    def of(cls, value: object, place: str, findings: Findings) -> Self:
        """Return the fields of a value; a value that is not an object is a fault."""
        if isinstance(value, dict):
            return cls(value, place, findings)
        findings.faults.append(f"{place or 'the file'}: should be an object")
        return cls({}, place, findings)

    def renamed(self, place: str) -> Self:
        """Return the same fields, with another place in their faults."""
        return type(self)(self._fields, place, self._findings)

    def fault(self, what: str) -> None:
        """Add a fault about the whole object."""
        fault = f"{self._place}: {what}" if self._place else what
        self._findings.faults.append(fault)

    def warn(self, what: str) -> None:
        """Add a warning about the whole object."""
        self._findings.warnings.append(f"{self._place}: {what}")

    def close(self) -> None:
        """Warn of the fields that no reader has requested, and that have no effect."""
        for name in self._unknown():
            warning = f"{self._at(name)}: unknown field, which has no effect"
            self._findings.warnings.append(warning)

    def close_strictly(self) -> None:
        """Report the fields that no reader has requested as faults."""
        for name in self._unknown():
            self._fault_at(name, "unknown field")

    def ignore(self, *names: str) -> None:
        """Accept fields without reading them."""
        self._known.update(names)

    def refuse(self, name: str, why: str) -> None:
        """Report a fault if a field is present."""
        if self._take(name) is not None:
            self._fault_at(name, why)

    def section(self, name: str) -> "Fields":
        """Return the fields of an inner object; an absent object has no fields."""
        value = self._take(name)
        return Fields.of({} if value is None else value, self._at(name), self._findings)

    def items(self, name: str) -> Iterator["Fields"]:
        """Return the fields of each object in a list; an absent list is empty."""
        value = self._take(name)
        if not isinstance(value, list | None):
            self._fault_at(name, "should be a list")
            return
        for index, item in enumerate(value or []):
            yield Fields.of(item, f"{self._at(name)}[{index}]", self._findings)

    def text(self, name: str, *, required: bool = False) -> str:
        """Return a text; an absent one is empty."""
        value = self._take(name)
        if required and not value:
            self._fault_at(name, "is missing")
        elif not isinstance(value, str | None):
            self._fault_at(name, "should be a text")
        return value if isinstance(value, str) else ""

    def choices(self, name: str, allowed: Sequence[str]) -> Sequence[str]:
        """Return a list of allowed texts, which has to have at least one."""
        value = self._take(name)
        found = value if isinstance(value, list) else []
        if not found or any(item not in allowed for item in found):
            known = ", ".join(allowed)
            self._fault_at(name, f"should be a list of some of: {known}")
        return [item for item in found if item in allowed]

    def flag(self, name: str) -> bool:
        """Return a boolean; an absent one is false."""
        value = self._take(name)
        if not isinstance(value, bool | None):
            self._fault_at(name, "should be true or false")
        return value is True

    def integer(self, name: str, default: int) -> int:
        """Return an integer of at least 1."""
        value = self._take(name)
        if value is None:
            return default
        is_flag = isinstance(value, bool)
        if isinstance(value, int) and not is_flag and 1 <= value <= _MOST_INT32:
            return value
        self._fault_at(name, f"should be a whole number from 1 to {_MOST_INT32}")
        return default

    def duration(self, name: str, default: str) -> timedelta:
        """Return an ISO 8601 duration above zero."""
        value = self._take(name)
        parsed = parse_duration(default if value is None else value)
        if parsed is None:
            self._fault_at(name, "should be a duration such as PT1M, in days or less")
        return parsed or timedelta(seconds=1)

    def mapping(self, name: str) -> Mapping[str, object]:
        """Return the texts, numbers and booleans of an inner object."""
        value = self._take(name)
        if not isinstance(value, dict | None):
            self._fault_at(name, "should be an object")
            return {}
        for key, item in (value or {}).items():
            if not isinstance(item, str | int | float):
                self._fault_at(f"{name}.{key}", "should be a text, number or boolean")
            elif isinstance(item, int) and not _LEAST_INT64 <= item <= _MOST_INT64:
                self._fault_at(
                    f"{name}.{key}",
                    f"should be a whole number from {_LEAST_INT64} to {_MOST_INT64}",
                )
        return value or {}

    def has(self, name: str) -> bool:
        """Return whether a field is present."""
        return self._fields.get(name) is not None

    def _unknown(self) -> list[str]:
        return [name for name in self._fields if name not in self._known]

    def _take(self, name: str) -> object:
        self._known.add(name)
        return self._fields.get(name)

    def _at(self, name: str) -> str:
        return f"{self._place}.{name}" if self._place else name

    def _fault_at(self, name: str, what: str) -> None:
        self._findings.faults.append(f"{self._at(name)}: {what}")


def parse_duration(value: object) -> timedelta | None:
    """Return an ISO 8601 duration above zero; None: the value is invalid."""
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return None
    parts = {unit: float(number) for unit, number in match.groupdict("0").items()}
    try:
        return timedelta(**parts) or None
    except OverflowError:
        return None

"""Compares the answers of a hub with the description of its API, which it serves."""

import json
import re
from collections.abc import Mapping
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker

Json = dict[str, Any]


class Described:
    """What the served description allows.

    Args:
        document: the answer of ``/api/v1/openapi.json``.
    """

    def __init__(self, document: Json) -> None:
        self.document = document
        self._components = {"components": _closed(document["components"])}
        self._validators: dict[str, Draft202012Validator] = {}
        self._ways = [(_pattern(path), path) for path in document["paths"]]

    def way(self, path: str) -> str | None:
        """Return the described path of a request; None = there is none."""
        plain = path.partition("?")[0]
        # of two that match, the one with fewer parameters: /decisions.csv
        found = [name for pattern, name in self._ways if pattern.match(plain)]
        return min(found, key=lambda name: name.count("{"), default=None)

    def check(
        self, method: str, path: str, status: int, kind: str, body: bytes
    ) -> None:
        """Fail if an answer is not as it is described.

        Args:
            method: of the request, such as "GET".
            path: its path, percent-encoded, with the query.
            status: of the answer.
            kind: its content type, without parameters.
            body: its body.
        """
        name = self.way(path)
        operation = self.document["paths"].get(name, {}).get(method.lower())
        if operation is None:
            return
        where = f"{method} {path}: {status}"
        assert str(status) in operation["responses"], f"{where} is not described"
        content = operation["responses"][str(status)].get("content", {})
        if not content:
            assert body == b"", where
            return
        assert kind in content, f"{where}: {kind} is not described"
        if kind == "application/json":
            faults = self.faults(content[kind]["schema"], json.loads(body))
            assert faults == [], f"{where}: {faults}"

    def faults(self, schema: Mapping[str, Any], value: object) -> list[str]:
        """Return where a value is not as a schema of the description says."""
        name = json.dumps(schema)
        if (validator := self._validators.get(name)) is None:
            validator = self._validators[name] = Draft202012Validator(
                {**_closed(schema), **self._components}, format_checker=FormatChecker()
            )
        return [f"{e.json_path}: {e.message}" for e in validator.iter_errors(value)]


def _pattern(path: str) -> re.Pattern[str]:
    """Return the pattern of a described path: {id} is one part of it."""
    parts = re.split(r"\{\w+\}", path)
    return re.compile("[^/]+".join(re.escape(part) for part in parts) + r"\Z")


def _closed(schema: Any) -> Any:
    """Return a schema in which a member that is not described is a fault."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _closed(value) for key, value in schema.items()}
    if schema.get("type") == "object" and isinstance(schema.get("properties"), dict):
        found.setdefault("additionalProperties", False)
    return found

"""``_bulk`` on a data stream with the index template of infra/siem.

Source: https://www.elastic.co/docs/api/doc/elasticsearch/operation/operation-bulk
"""

import json
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from msgspec import ValidationError, convert

from tests.receivers.serving import Post, Reply, Way, json_reply

KEY = "aWQ6c2VjcmV0"
STREAM = "logs-sebridge.events-default"
TEMPLATE = json.loads(
    (Path(__file__).parents[2] / "infra/siem/elastic/index-template.json").read_text()
)
MAPPING = TEMPLATE["template"]["mappings"]
_LONGEST_TERM = 32766
_DEEPEST = 20
_TYPES = {
    409: "version_conflict_engine_exception",
    429: "es_rejected_execution_exception",
    404: "index_not_found_exception",
    403: "cluster_block_exception",
    503: "unavailable_shards_exception",
    400: "document_parsing_exception",
}


@dataclass(slots=True)
class Elastic:
    """A cluster.

    Attributes:
        item: a status that every item gets whatever is sent.
        items: a status that an item gets, by its id.
    """

    item: int | None = None
    items: dict[str, int] = field(default_factory=dict)
    status: int | None = None
    taken: dict[str, dict[str, Any]] = field(default_factory=dict)

    def answer(self, post: Post) -> Reply:
        if post.scheme != "ApiKey" or post.credentials != KEY:
            return json_reply(401, {"error": {"type": "security_exception"}})
        if post.path != f"/{STREAM}/_bulk":
            return json_reply(405, {"error": "Incorrect HTTP method"})
        if post.media_type not in {"application/x-ndjson", "application/json"}:
            return json_reply(406, {"error": "Content-Type header is not supported"})
        if self.status:
            return json_reply(self.status, {"error": {"type": "unavailable"}})
        if not post.body.endswith(b"\n"):
            return json_reply(400, {"error": {"type": "illegal_argument_exception"}})
        return self._bulk(post.body.decode().removesuffix("\n").split("\n"))

    def _bulk(self, lines: list[str]) -> Reply:
        items = []
        for action, source in zip(lines[::2], lines[1::2], strict=True):
            ((verb, meta),) = json.loads(action).items()
            status, why = self._indexed(verb, meta, json.loads(source))
            error = {"error": {"type": _TYPES[status], "reason": why}} if why else {}
            items.append({verb: {"_id": meta.get("_id"), "status": status, **error}})
        has_errors = any("error" in next(iter(item.values())) for item in items)
        return json_reply(200, {"took": 1, "errors": has_errors, "items": items})

    def _indexed(
        self, verb: str, meta: dict[str, Any], source: dict[str, Any]
    ) -> tuple[int, str]:
        if found := self.items.get(meta["_id"], self.item):
            return found, "as told"
        if verb != "create":
            return 400, "only write ops with an op_type of create are allowed"
        if len(meta["_id"].encode()) > 512:
            return 400, "id is too long"
        if faults := refusals(source):
            return 400, "; ".join(faults)
        if meta["_id"] in self.taken:
            return 409, "document already exists"
        self.taken[meta["_id"]] = source
        return 201, ""


def refusals(source: dict[str, Any]) -> list[str]:
    """Return why a document would not be indexed; what is lost does not count."""
    if not _is_date(source.get("@timestamp")):
        return ["data stream timestamp field [@timestamp] is missing or malformed"]
    return _refusals(source, MAPPING, "")


def _refusals(value: object, mapping: dict[str, Any], path: str) -> list[str]:
    if value is None or mapping.get("enabled") is False:
        return []
    if mapping.get("type") == "flattened":
        return _flattened(value, path)
    if isinstance(value, list):
        return [fault for each in value for fault in _refusals(each, mapping, path)]
    if isinstance(value, dict) is not ("properties" in mapping):
        return [f"{path}: an object where a value is, or a value where an object is"]
    if isinstance(value, dict):
        known = mapping["properties"]
        return [
            fault
            for name, below in value.items()
            if name in known
            for fault in _refusals(below, known[name], f"{path}.{name}")
        ]
    is_term = mapping["type"] == "keyword" and mapping.get("index", True)
    is_immense = "ignore_above" not in mapping and len(str(value)) > _LONGEST_TERM // 4
    is_other = mapping.get("value", value) != value  # of a constant_keyword
    faults = {"immense term": is_term and is_immense, "another constant": is_other}
    return [f"{path}: {name}" for name, is_fault in faults.items() if is_fault]


def _flattened(value: object, path: str) -> list[str]:
    if not isinstance(value, dict):
        return [f"{path}: no object where a flattened is"]
    return _nested(value, path, 1)


def _nested(value: object, path: str, depth: int) -> list[str]:
    if depth > _DEEPEST:
        return [f"{path}: deeper than depth_limit"]
    if isinstance(value, list):
        return [fault for each in value for fault in _nested(each, path, depth + 1)]
    if not isinstance(value, dict):
        return []
    return [f"{path}: NUL in a key" for key in value if "\0" in key] + [
        fault for each in value.values() for fault in _nested(each, path, depth + 1)
    ]


def _is_date(value: object) -> bool:
    try:
        convert(value, datetime)
    except ValidationError:
        return False
    return True


WAYS = {
    "elastic": Way(
        Elastic,
        f"/{STREAM}/_bulk?filter_path=errors,items.*.status",
        {"Authorization": f"ApiKey {KEY}"},
        {"auth": {"token": KEY}},
        {"ELASTIC_API_KEY": KEY},
        wrong={"auth": {"type": "bearer", "token": "wrong"}},
        statuses={413: "P", 429: "T", 503: "T"},
    )
}

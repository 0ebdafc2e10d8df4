"""The Service Bus entities that sinks send to, found without the sinks' secrets."""

from collections.abc import Iterator, Mapping

from bridge.foundation.sections import Reader
from bridge.servicebus.namespace import UNKNOWN_HOST, Entity
from bridge.sinks.registry import SINK_TYPES


def sink_targets(tables: object, environ: Mapping[str, str]) -> Iterator[Entity]:
    """Yield the Service Bus entities that sinks send to.

    Args:
        tables: the sinks of the file; from a faulty one, what can be read is used.
        environ: the environment, for secrets that are present.
    """
    for table in tables if isinstance(tables, list) else ():
        kind = table.get("type") if isinstance(table, dict) else None
        if not isinstance(kind, str) or kind not in SINK_TYPES:
            continue
        sink = Reader("", environ).section(SINK_TYPES[kind], table, "")
        if (target := sink.target if sink else _written(table)) is not None:
            yield target


def _written(table: Mapping[str, object]) -> Entity | None:
    """Return the entity as far as it is known without the connection string."""
    for key in ("queue", "topic"):
        if (name := table.get(key)) and isinstance(name, str):
            host = str(table.get("namespace") or UNKNOWN_HOST).lower()
            return Entity(key=key, host=host, name=name.strip("/").lower())
    return None

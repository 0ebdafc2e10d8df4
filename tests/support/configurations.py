"""Configurations of a forwarder: the tables of its sinks, and the text of its file.

A test says what it is about, and gets the rest: IMDS that is read four times a second,
and no port for the status. A test of the very bytes of a file has a text of its own.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

Table = Mapping[str, object]
NOWHERE = "http://127.0.0.1:9"  # nobody listens there


def config_text(
    *sinks: Table,
    imds: str | Table = NOWHERE,
    state: Path | None = None,
    listen: str = "",
    **others: object,
) -> str:
    """Return the text of a configuration.

    Args:
        sinks: the tables of the sinks.
        imds: the address of IMDS, or the whole section.
        state: the state file; by default it is where the program puts it.
        listen: where the status is served; by default it is not.
        others: the other sections, and the keys that are in no section.
    """
    if isinstance(imds, str):
        imds = {"endpoint": imds, "poll_interval": "250ms"}
    tables: dict[str, object] = {
        "imds": imds,
        **({} if state is None else {"state": {"path": state}}),
        "http": {"listen": listen},
        "sinks": sinks,
    }
    return toml({**tables, **others})


def webhook(url: str, name: str = "siem", **keys: object) -> dict[str, object]:
    return {"name": name, "type": "webhook", "url": url, **keys}


def servicebus(
    connection_string: str, name: str = "bus", **keys: object
) -> dict[str, object]:
    """Return a sink that sends to the topic, or to a queue if ``keys`` have one."""
    entity = {} if "queue" in keys else {"topic": "scheduled-events"}
    own = {"name": name, "type": "servicebus", "connection_string": connection_string}
    return {**own, **entity, **keys}


def slack(webhook_url: str, name: str = "ops", **keys: object) -> dict[str, object]:
    return {"name": name, "type": "slack", "webhook_url": webhook_url, **keys}


def command(
    *words: str | Path, name: str = "drain", **keys: object
) -> dict[str, object]:
    return {"name": name, "type": "command", "command": words, **keys}


def approvals(
    connection_string: str, queue: str = "vm-approvals", **keys: object
) -> dict[str, object]:
    """Return the section ``approvals``."""
    return {"connection_string": connection_string, "queue": queue, **keys}


def toml(root: Table) -> str:
    """Write a configuration: what is in no section, then each section and sink.

    A table in a section stands on one line, so that more can be written behind.
    """
    loose, sections = list[str](), list[str]()
    for key, value in root.items():
        if key == "sinks" and isinstance(value, Iterable):
            for sink in value:
                sections += ["[[sinks]]", *_pairs(sink)]
        elif isinstance(value, Mapping):
            sections += [f"[{key}]", *_pairs(value)]
        else:
            loose.append(f"{key} = {_value(value)}")
    return "\n".join([*loose, *sections, ""])


def _pairs(table: Table) -> Iterator[str]:
    return (f"{_key(key)} = {_value(item)}" for key, item in table.items())


def _key(name: str) -> str:
    return name if name.isidentifier() and name.isascii() else json.dumps(name)


def _value(value: object) -> str:
    """Return a value as it stands on one line."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(_pairs(value)) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value.as_posix() if isinstance(value, Path) else value)

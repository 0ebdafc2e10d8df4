"""Configurations of a forwarder: the tables of its sinks, and the text of its file.

A test says what it is about, and gets the rest: IMDS that is read four times a second,
no port for the state. Where the bytes of a file are the point, it stands in the test.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

Table = Mapping[str, object]
NOWHERE = "http://127.0.0.1:9"  # nobody listens there


def configuration(  # noqa: PLR0913 - each is one section
    *sinks: Table,
    imds: str | Table = NOWHERE,
    state: Path | None = None,
    listen: str | None = "",
    **sections: object,
) -> str:
    """Return the text of a configuration, with each section and sink on one line.

    Args:
        sinks: the tables of the sinks.
        imds: the address of IMDS, or the whole section.
        state: the state file; by default where the package puts it.
        listen: where the state is shown, by default nowhere; None leaves the section out.
        sections: the other sections, and keys outside all sections.
    """
    if isinstance(imds, str):
        imds = {"endpoint": imds, "poll_interval": "250ms"}
    state_table = {} if state is None else {"state": {"path": state}}
    http = {} if listen is None else {"http": {"listen": listen}}
    found = {"imds": imds, **state_table, **http, **sections, "sinks": sinks}
    return "".join(f"{key} = {_inline(value)}\n" for key, value in found.items())


def webhook(url: str, name: str = "siem", **keys: object) -> dict[str, object]:
    return {"name": name, "type": "webhook", "url": url, **keys}


def servicebus(
    connection_string: str, name: str = "bus", **keys: object
) -> dict[str, object]:
    """Return a sink that sends to the topic, or to a queue if one is given."""
    entity = {} if "queue" in keys else {"topic": "scheduled-events"}
    own = {"name": name, "type": "servicebus", "connection_string": connection_string}
    return {**own, **entity, **keys}


def command(*words: str | Path, name: str = "drain", **keys: object) -> dict[str, object]:
    return {"name": name, "type": "command", "command": words, **keys}


def approvals(
    connection_string: str, queue: str = "vm-approvals", **keys: object
) -> dict[str, object]:
    """Return the section of approvals."""
    return {"connection_string": connection_string, "queue": queue, **keys}


def _inline(value: object) -> str:
    """Return a value as TOML that stands on one line."""
    if isinstance(value, Path):
        return json.dumps(value.as_posix())
    if isinstance(value, Mapping):
        pairs = (f"{_key(key)} = {_inline(part)}" for key, part in value.items())
        return "{ " + ", ".join(pairs) + " }"
    if isinstance(value, Iterable) and not isinstance(value, str):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return json.dumps(value)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else json.dumps(name)

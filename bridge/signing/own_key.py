"""The key of a bridge, which signs its events: a file beside the state file.

It is made at the first start, can be read by the account of the service alone, and
belongs to one vmId. On a clone of the VM, or on one made of its image, it is moved
aside and another one is made.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from msgspec.structs import replace

from bridge.events.cloudevent import CloudEvent
from bridge.events.truncate import fitted
from bridge.signing.dsse import ATTRIBUTE, SignedEvent, Signer, material

SUFFIX = ".key"
_ROOM = 2600  # bytes: the signature in the body, and its copy among the properties


@dataclass(slots=True)
class EventSigner:
    """Signs the events of this bridge.

    Attributes:
        keys: the keys that sign; the first one counts the events.
        run: what tells this start of the bridge from others; random.
        unsigned: how many events could not be signed.
        fault: why the last one of them could not be.
    """

    keys: Sequence[Signer]
    run: str
    unsigned: int = 0
    fault: str | None = None

    def signed(self, event: CloudEvent, number: int | None) -> CloudEvent:
        """Return an event with ``data.chain`` and its signature.

        Its data is sorted by name, so that its bytes are the same wherever it is
        written.
        What cannot be signed is returned as it is, and counted.

        Args:
            event: the event, as it would be sent.
            number: the number of the event; None = it is not stored on the disk.
        """
        try:
            return self._signed(event, number)
        except (TypeError, ValueError) as error:
            self.unsigned, self.fault = self.unsigned + 1, str(error)
            return event

    def _signed(self, event: CloudEvent, number: int | None) -> CloudEvent:
        chain = {"key": self.keys[0].key_id, "run": self.run, "n": number}
        linked = replace(event, data={**event.data, "chain": chain})
        small = fitted(linked, room=_ROOM)
        data = orjson.dumps(small.data, option=orjson.OPT_SORT_KEYS)
        whole = SignedEvent(attributes=small.attributes(), data=data)
        found = material(whole, self.keys)
        extensions = {**small.extensions, ATTRIBUTE: found}
        return replace(small, extensions=extensions, data=orjson.loads(data))


def own_keys(state: Path, vm_id: str) -> Sequence[Signer]:
    """Return the keys of this bridge; make one at the first start.

    Args:
        state: the path of the state file.
        vm_id: of this VM.

    Raises:
        ValueError: the file cannot be read or written; it is not repeated.
    """
    from bridge.signing import keys  # noqa: PLC0415 - needs 10 MiB

    if not vm_id:
        raise ValueError("the vmId of this VM is not known")
    path = state.with_name(f"{state.name}{SUFFIX}")
    try:
        if (text := _text_of(path)) is not None:
            held: Any = orjson.loads(text)
            if held["vmId"] == vm_id:
                return keys.private_keys(text)
            path.replace(f"{path}.{held['vmId']}")
        _write(path, orjson.dumps({"vmId": vm_id, "keys": [keys.new_key()]}))
        return keys.private_keys(path.read_text())
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    except (KeyError, TypeError, orjson.JSONDecodeError) as error:
        raise ValueError(f"{path}: is no file of a key") from error


def _text_of(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None


def _write(path: Path, content: bytes) -> None:
    """Write a whole file or none, for this account alone."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    with os.fdopen(os.open(new, flags, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)

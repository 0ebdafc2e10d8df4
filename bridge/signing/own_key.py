"""The key of a bridge, which signs its events: a file beside the state file.

It is made at the first start, can be read by the account of the service alone, and
belongs to one vmId. On a clone of the VM, or on one made of its image, it is moved
aside and another one is made.

While the key is replaced, the file holds two, and both sign: the new one first.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
import orjson
from msgspec import Struct
from msgspec.structs import replace

from bridge.events.cloudevent import CloudEvent, fitted
from bridge.signing.dsse import ATTRIBUTE, SignedEvent, Signer, material

SUFFIX = ".key"
_MOST = 2  # keys in a file
_ROOM = 2600  # bytes: the signature in the body, and its copy among the properties


class _File(msgspec.Struct, rename={"vm_id": "vmId", "resource_id": "resourceId"}):
    vm_id: str
    keys: list[dict[str, str]]
    resource_id: str = ""


class OwnKey(Signer, Protocol):
    """A private key, whose public part can be told."""

    @property
    def jwk(self) -> dict[str, str]:
        """The public key as JWK."""
        ...


class EventSigner(Struct):
    """Signs the events of this bridge.

    Attributes:
        keys: the keys that sign; the first one counts the events. () = there is none.
        run: what tells this start of the bridge from others; random.
        last: the number of the last signed event; None = none since the start.
        unsigned: how many events could not be signed.
        fault: why the last one of them could not be.
        count: called for each of them.
    """

    keys: Sequence[OwnKey]
    run: str
    last: int | None = None
    unsigned: int = 0
    fault: str | None = None
    count: Callable[[], None] = lambda: None

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
            found = self._signed(event, number)
        except (TypeError, ValueError) as error:
            self.unsigned, self.fault = self.unsigned + 1, str(error)
            self.count()
            return event
        self.last = number or self.last
        return found

    @property
    def terms(self) -> dict[str, object]:
        """``data.signing``: the last number, and the public keys."""
        return {"n": self.last, "keys": [one.jwk for one in self.keys]}

    def _signed(self, event: CloudEvent, number: int | None) -> CloudEvent:
        if not self.keys:
            raise ValueError(self.fault)
        chain = {"key": self.keys[0].key_id, "run": self.run, "n": number}
        linked = replace(event, data={**event.data, "chain": chain})
        small = fitted(linked, room=_ROOM)
        data = orjson.dumps(small.data, option=orjson.OPT_SORT_KEYS)
        whole = SignedEvent(attributes=small.attributes(), data=data)
        found = material(whole, self.keys)
        extensions = {**small.extensions, ATTRIBUTE: found}
        return replace(small, extensions=extensions, data=orjson.loads(data))


def own_keys(state: Path, vm_id: str, resource_id: str = "") -> Sequence[OwnKey]:
    """Return the keys of this bridge; make one at the first start.

    Args:
        state: the path of the state file.
        vm_id: of this VM.
        resource_id: of this VM, for ``sebridge key show``; "" = not known.

    Raises:
        ValueError: the file cannot be read or written; it is not repeated.
    """
    from bridge.signing import keys  # noqa: PLC0415 - needs 10 MiB

    if not vm_id:
        raise ValueError("the vmId of this VM is not known")
    path = state.with_name(f"{state.name}{SUFFIX}")
    try:
        if (held := held_in(path)) is not None:
            if held.vm_id == vm_id:
                return keys.private_keys(path.read_text())
            path.replace(f"{path}.{held.vm_id}")
        _write(path, _File(vm_id, [keys.new_key()], resource_id))
        return keys.private_keys(path.read_text())
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error


def rotate(path: Path) -> None:
    """Put a new key before the key in a file, for the next start of the bridge.

    Raises:
        ValueError: the file cannot be read or written, or has two keys already.
    """
    from bridge.signing import keys  # noqa: PLC0415 - needs 10 MiB

    _change(path, lambda old: [keys.new_key(), *old], "two keys: retire the older one")


def retire(path: Path) -> None:
    """Take the older of two keys out of a file, for the next start of the bridge.

    Raises:
        ValueError: the file cannot be read or written, or has one key only.
    """
    _change(path, lambda both: both[:1], "one key only")


def _change(path: Path, change: Callable[[list[Any]], list[Any]], else_: str) -> None:
    try:
        if (held := held_in(path)) is None:
            raise ValueError(f"{path}: there is no key yet: the first start makes it")
        made = change(held.keys)
        if len(made) > _MOST or made == held.keys:
            raise ValueError(f"{path}: has {else_}")
        _write(path, _File(held.vm_id, made, held.resource_id), path.stat())
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error


def held_in(path: Path) -> _File | None:
    """Return what a file of a key holds; None = there is no file.

    Raises:
        ValueError: it is another file.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=_File)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(f"{path}: is no file of a key") from error


def _write(path: Path, held: _File, like: os.stat_result | None = None) -> None:
    """Write a whole file or none, for this account alone, or for the owner of one."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    with os.fdopen(os.open(new, flags, 0o600), "wb") as file:
        if like is not None and hasattr(os, "fchown"):  # root changes the key
            os.fchown(file.fileno(), like.st_uid, like.st_gid)
        file.write(msgspec.json.encode(held))
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)

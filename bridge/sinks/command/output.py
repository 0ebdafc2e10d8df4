"""Keep the first and the last part of a command's output, without secrets."""

import re
from typing import Self

from msgspec import Struct, field

_HEAD = 2 * 1024
_TAIL = 6 * 1024
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_SECRETS = (
    re.compile(r"(?i)(\bbearer\s+)[A-Za-z0-9._~+/=-]+"),
    re.compile(r"(?i)(\b(?:sig|sharedaccesskey|accountkey)=)[^\s&;\"']+"),
    re.compile(r"(?i)(\bsharedaccesssignature\s+)\S+"),
    re.compile(r"()\beyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*){0,2}"),
)
_MASK = r"\1<secret>"
# A word whose beginning was not kept is removed: it may be the end of a token.
_REST_OF_WORD = re.compile(r"^\S+")


class Kept(Struct):
    """The first 2 KiB and the last 6 KiB of a stream, however long it is."""

    _head: bytearray = field(default_factory=bytearray)
    _tail: bytearray = field(default_factory=bytearray)
    _count: int = 0

    @classmethod
    def of(cls, head: bytes, tail: bytes, count: int) -> Self:
        """Return an output that another process has read.

        Args:
            head: its beginning.
            tail: its end.
            count: the number of bytes of the whole output.
        """
        return cls(bytearray(head[:_HEAD]), bytearray(tail[-_TAIL:]), count)

    def feed(self, chunk: bytes) -> None:
        """Add the next part of the output."""
        self._count += len(chunk)
        room = _HEAD - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        if len(self._tail) > 2 * _TAIL:
            del self._tail[:-_TAIL]

    def text(self) -> str:
        """Return the kept parts as text, without control characters and secrets."""
        tail = bytes(self._tail[-_TAIL:])
        left_out = self._count - len(self._head) - len(tail)
        if not left_out:
            return cleaned(bytes(self._head) + tail)
        rest = _REST_OF_WORD.sub("", tail.decode(errors="replace"))
        head = cleaned(bytes(self._head))
        return f"{head}\n[… {left_out} bytes left out …]\n{cleaned(rest.encode())}"


def cleaned(text: bytes) -> str:
    """Decode a text, and remove control characters and secrets."""
    plain = text.decode(errors="replace").replace("\r\n", "\n")
    plain = _CONTROLS.sub("", _ESCAPES.sub("", plain))
    for pattern in _SECRETS:
        plain = pattern.sub(_MASK, plain)
    return plain.strip("\n")

"""Takes over a listener from systemd, so that a restart refuses no connection.

Source: sd_listen_fds(3).
"""

import os
import socket
from collections.abc import Iterator, MutableMapping

_FIRST = 3
_NAMES = "LISTEN_FDNAMES"
_NAME = "traffic"  # FileDescriptorName= of sebridge-traffic.socket


def inherited_listener(environ: MutableMapping[str, str]) -> socket.socket | None:
    """Return the listener for the probe that systemd passed; None if there is none.

    The variables are removed, so that child processes do not use them.

    Args:
        environ: the environment of this process.
    """
    variables = {
        key: environ.pop(key, "") for key in ("LISTEN_PID", "LISTEN_FDS", _NAMES)
    }
    if variables["LISTEN_PID"] != str(os.getpid()):
        return None
    names = variables[_NAMES].split(":")
    for descriptor, name in _descriptors(variables["LISTEN_FDS"], names):
        if name == _NAME and (listener := _listener(descriptor)) is not None:
            return listener
    return None


def _descriptors(count: str, names: list[str]) -> Iterator[tuple[int, str]]:
    passed = int(count) if count.isascii() and count.isdigit() else 0
    return zip(range(_FIRST, _FIRST + passed), names, strict=False)


def _listener(descriptor: int) -> socket.socket | None:
    """Return the socket if it listens for connections, else None."""
    try:
        found = socket.socket(fileno=descriptor)
    except OSError:
        return None
    is_stream = found.type == socket.SOCK_STREAM
    if not (is_stream and found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)):
        found.detach()
        return None
    found.settimeout(0)
    os.set_inheritable(found.fileno(), False)  # noqa: FBT003 - positional only
    return found

"""Takes over listeners from systemd, so that a restart refuses no connection.

Nor can another program take the port meanwhile.

Source: sd_listen_fds(3).
"""

import os
import socket
from collections.abc import Iterator, Mapping, MutableMapping

_FIRST = 3
_NAMES = "LISTEN_FDNAMES"
# FileDescriptorName= of sebridge-traffic.socket and sebridge-health.socket
TRAFFIC, HEALTH = "traffic", "health"


def inherited_listeners(
    environ: MutableMapping[str, str],
) -> Mapping[str, socket.socket]:
    """Return the listeners that systemd passed, by their names.

    The variables are removed, so that child processes do not use them.

    Args:
        environ: the environment of this process.
    """
    variables = {
        key: environ.pop(key, "") for key in ("LISTEN_PID", "LISTEN_FDS", _NAMES)
    }
    if variables["LISTEN_PID"] != str(os.getpid()):
        return {}
    names, found = variables[_NAMES].split(":"), dict[str, socket.socket]()
    for descriptor, name in _descriptors(variables["LISTEN_FDS"], names):
        is_known = name in {TRAFFIC, HEALTH} and name not in found
        if is_known and (listener := _listener(descriptor)) is not None:
            found[name] = listener
    return found


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

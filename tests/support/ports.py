"""Ports for programs that must be told theirs before they listen.

A port that the system chooses may be taken by somebody else between the moment it is
found free and the moment the program listens: each connection that anybody opens takes
one of the same range. So these ports lie below that range, and a socket of the other
kind keeps each for this process, whoever else runs tests on this machine.
"""

import random
import socket
from contextlib import ExitStack, suppress

_RANGE = range(15_000, 30_000)
_OTHER = {
    socket.SOCK_STREAM: socket.SOCK_DGRAM,
    socket.SOCK_DGRAM: socket.SOCK_STREAM,
}


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    """Return a port that nobody has, and that no other test is given."""
    for port in random.sample(_RANGE, 1000):
        with suppress(OSError), ExitStack() as stack:
            bound(port, kind, stack)
            bound(port, _OTHER[kind], stack).detach()  # open until the process ends
            return port
    raise AssertionError("1000 ports are taken")


def has_ipv6() -> bool:
    """Return whether this machine can listen on addresses of IPv6."""
    with (
        suppress(OSError),
        socket.create_server(("::1", 0), family=socket.AF_INET6),
    ):
        return True
    return False


def bound(port: int, kind: socket.SocketKind, stack: ExitStack) -> socket.socket:
    """Return a socket at a port of all addresses.

    Raises:
        OSError: somebody has it.
    """
    found = stack.enter_context(socket.socket(socket.AF_INET, kind))
    found.bind(("", port))
    return found

"""A process to which the kernel refuses locks, as some network file systems do.

Run as a program, it takes the number of an error and a command: it installs a filter
(seccomp) that answers each request for a lock with this error, and becomes the command.
"""

import ctypes
import os
import platform
import struct
import sys

import pytest

# The number of fcntl, and the name that the kernel has for the machine.
_MACHINES = {"x86_64": (72, 0xC000003E), "aarch64": (25, 0xC00000B7)}
_LOAD, _IF, _RETURN = 0x20, 0x15, 0x06
_ALLOWED, _REFUSED = 0x7FFF0000, 0x00050000
_SETLK, _SETLKW = 6, 7
_NO_NEW_PRIVS, _SECCOMP, _FILTER = 38, 22, 2


def refusing_locks(error: int) -> tuple[str, ...]:
    """Return what to put before a command, so that it gets no lock."""
    if sys.platform != "linux" or platform.machine() not in _MACHINES:
        pytest.skip("only Linux can refuse locks to a process")
    return (sys.executable, __file__, str(error))


def refuse_locks(error: int) -> None:
    """Refuse all locks to this process from now on."""
    number, machine = _MACHINES[platform.machine()]
    program = (
        (_LOAD, 0, 0, 4),  # the machine
        (_IF, 0, 6, machine),
        (_LOAD, 0, 0, 0),  # the number of the system call
        (_IF, 0, 4, number),
        (_LOAD, 0, 0, 24),  # its second argument
        (_IF, 1, 0, _SETLK),
        (_IF, 0, 1, _SETLKW),
        (_RETURN, 0, 0, _REFUSED | error),
        (_RETURN, 0, 0, _ALLOWED),
    )
    code = b"".join(struct.pack("HBBI", *step) for step in program)
    body = ctypes.create_string_buffer(code, len(code))
    asked = struct.pack("HxxxxxxQ", len(program), ctypes.addressof(body))
    libc = ctypes.CDLL(None, use_errno=True)
    for question in ((_NO_NEW_PRIVS, 1, 0, 0, 0), (_SECCOMP, _FILTER, asked)):
        if libc.prctl(*question) != 0:
            raise OSError(ctypes.get_errno(), "no filter can be installed")


if __name__ == "__main__":
    refuse_locks(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606 - becomes the command

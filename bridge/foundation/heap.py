"""Gives memory that is free back to the system."""

import sys
from contextlib import suppress


def give_back() -> None:
    """Give back the memory that was freed, if the C library keeps it.

    glibc gives back only what lies at the end of a heap by itself, so that a process
    stays as large as it ever was. Other threads that want memory wait for some
    milliseconds. Does nothing without glibc.
    """
    if sys.platform != "linux":
        return
    # Without ctypes, or where it may not make code at run time, memory stays as it is.
    with suppress(ImportError, MemoryError, OSError, AttributeError):
        import ctypes  # noqa: PLC0415 - costs memory, and most never need it

        ctypes.CDLL(None).malloc_trim(0)

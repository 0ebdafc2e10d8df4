"""Gives memory that is free back to the system."""

from contextlib import suppress


def give_back() -> None:
    """Give back the memory that was freed, if the C library keeps it.

    By itself, glibc gives back only what lies at the end of a heap: a process stays
    nearly as large as it ever was. Threads that want memory meanwhile wait for some
    milliseconds. Nothing is done where the C library is another one.
    """
    # Without ctypes, or where it may not make code at run time, memory stays as it is.
    with suppress(ImportError, MemoryError, OSError, AttributeError):
        import ctypes  # noqa: PLC0415 - costs memory, and most never need it

        ctypes.CDLL("libc.so.6").malloc_trim(0)

"""Gives free memory back to the system."""

from contextlib import suppress


def give_back() -> None:
    """Give back the memory that was freed, if the C library keeps it.

    By itself, glibc gives back only memory at the end of a heap: a process stays nearly
    as large as it ever was. Other threads that need memory during this call wait for
    some milliseconds. With another C library, nothing is done.
    """
    # Without ctypes, or where it may not make code at run time, memory stays as it is.
    with suppress(ImportError, MemoryError, OSError, AttributeError):
        import ctypes  # noqa: PLC0415 - costs memory, and most never need it

        ctypes.CDLL("libc.so.6").malloc_trim(0)

"""A real browser without a window: Debian's Chromium, which the tests skip without.

    async def test_page(browser: Browser) -> None:
        dom = await browser.dom("http://127.0.0.1:8080/")
        png = await browser.picture("http://127.0.0.1:8080/", 900, 700)

It reaches this machine and no other.
"""

import asyncio
import os
import shutil
import signal
import struct
import tempfile
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
_SECONDS: Final = 60.0
_FLAGS: Final = (
    "--headless",
    "--no-sandbox",  # for root in a container
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-proxy-server",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)


@dataclass(frozen=True, slots=True)
class Browser:
    """One that is started anew, with no memory, for each page.

    Args:
        program: where it is.
    """

    program: str

    async def dom(self, url: str) -> str:
        """Return the page at ``url`` as HTML, as it is once its scripts have run.

        Raises:
            TimeoutError: it took more than a minute.
        """
        async with _folder() as folder:
            return (await self._run(folder, "--dump-dom", url)).decode()

    async def picture(self, url: str, width: int, height: int) -> bytes:
        """Return the page at ``url`` as PNG.

        Args:
            url: the page.
            width: of the window, in pixels.
            height: of the window; what lies below is not in the picture.

        Raises:
            TimeoutError: it took more than a minute.
        """
        async with _folder() as folder:
            path = folder / "page.png"
            size = f"--window-size={width},{height}"
            await self._run(folder, f"--screenshot={path}", size, url)
            return path.read_bytes()

    async def _run(self, folder: Path, *arguments: str) -> bytes:
        process = await asyncio.create_subprocess_exec(
            self.program,
            *_FLAGS,
            f"--user-data-dir={folder / 'profile'}",
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={"HOME": str(folder), "PATH": os.environ["PATH"], "LANG": "C.UTF-8"},
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(_SECONDS):
                out, _ = await process.communicate()
        finally:
            with suppress(ProcessLookupError):  # it starts others, which may outlive it
                os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == 0
        return out


def colors(png: bytes) -> set[str]:
    """Return the colours of a picture that Chromium made, such as ``"3f0e40"``."""
    width, _, depth, kind = struct.unpack(">IIBB", png[16:26])
    size = {2: 3, 6: 4}[kind]  # RGB, RGBA
    assert depth == 8
    packed, at = b"", 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        if png[at + 4 : at + 8] == b"IDAT":
            packed += png[at + 8 : at + 8 + length]
        at += length + 12
    raw = zlib.decompress(packed)
    stride = width * size
    found: set[bytes] = set()
    above = bytes(stride)
    for start in range(0, len(raw), stride + 1):
        above = _row(raw[start], raw[start + 1 : start + 1 + stride], above, size)
        found |= {above[each : each + 3] for each in range(0, stride, size)}
    return {each.hex() for each in found}


def _row(how: int, given: bytes, above: bytes, size: int) -> bytes:
    """Undo the filter of a row (www.w3.org/TR/png/#9Filters)."""
    row = bytearray(given)
    for place in range(len(row)) if how else ():
        left = row[place - size] if place >= size else 0
        corner = above[place - size] if place >= size else 0
        guess = (0, left, above[place], (left + above[place]) // 2)
        near = guess[how] if how < 4 else _nearest(left, above[place], corner)
        row[place] = (row[place] + near) & 0xFF
    return bytes(row)


def _nearest(left: int, above: int, corner: int) -> int:
    line = left + above - corner
    return min((left, above, corner), key=lambda each: abs(line - each))


@asynccontextmanager
async def _folder() -> AsyncIterator[Path]:
    # What it started may still write there while it ends.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def find() -> Browser | None:
    """Return the browser of this machine, if it has one."""
    programs = filter(None, map(shutil.which, _NAMES))
    return next((Browser(program) for program in programs), None)


@pytest.fixture
def browser() -> Browser:
    if (found := find()) is None:
        pytest.skip("there is no Chromium here (Debian: apt-get install chromium)")
    return found

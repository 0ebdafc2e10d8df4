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
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
NO_BROWSER: Final = "there is no Chromium here (Debian: apt-get install chromium)"
_SECONDS: Final = 60.0
FLAGS: Final = (
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
        flags: more than the usual ones, such as ``--virtual-time-budget=5000``.
    """

    program: str
    flags: tuple[str, ...] = ()

    async def dom(self, url: str) -> str:
        """Return the page at ``url`` as HTML, as it is once its scripts have run.

        Raises:
            TimeoutError: it took more than a minute.
        """
        async with folder() as home:
            return (await self._run(home, "--dump-dom", url)).decode()

    async def picture(self, url: str, width: int, height: int) -> bytes:
        """Return the page at ``url`` as PNG.

        Args:
            url: the page.
            width: of the window, in pixels.
            height: of the window; what lies below is not in the picture.

        Raises:
            TimeoutError: it took more than a minute.
        """
        async with folder() as home:
            path = home / "page.png"
            size = f"--window-size={width},{height}"
            await self._run(home, f"--screenshot={path}", size, url)
            return path.read_bytes()

    async def _run(self, home: Path, *arguments: str) -> bytes:
        process = await asyncio.create_subprocess_exec(
            self.program,
            *FLAGS,
            *self.flags,
            f"--user-data-dir={home / 'profile'}",
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={"HOME": str(home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8"},
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


@asynccontextmanager
async def folder() -> AsyncIterator[Path]:
    """Yield a folder for one browser alone."""
    # What it started may still write there while it ends.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        yield Path(name)


def find() -> Browser | None:
    """Return the browser of this machine, if it has one."""
    programs = filter(None, map(shutil.which, _NAMES))
    return next((Browser(program) for program in programs), None)


@pytest.fixture
def browser() -> Browser:
    if (found := find()) is None:
        pytest.skip(NO_BROWSER)
    return found

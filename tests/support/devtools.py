"""A browser that stays open: pages are followed, typed on and measured from outside.

    async with opened_tab(program) as tab:
        await tab.open("http://127.0.0.1:8080/")
        await tab.press("Tab")
        title = await tab.value("document.title")

Source: chromedevtools.github.io/devtools-protocol
"""

import asyncio
import base64
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.browser import FLAGS

_SECONDS = 60.0
_KEYS = {"Tab": 9, "Enter": 13, " ": 32}


@dataclass
class Tab:
    """One page of a browser that stays open."""

    socket: aiohttp.ClientWebSocketResponse
    _last: int = field(default=0)

    async def call(self, method: str, **given: Any) -> Mapping[str, Any]:
        """Ask the browser for something, and return what it answers."""
        self._last += 1
        asked = self._last
        await self.socket.send_json({"id": asked, "method": method, "params": given})
        async with asyncio.timeout(_SECONDS):
            while True:
                answer = await self.socket.receive_json()
                if answer.get("id") == asked:
                    assert "error" not in answer, answer
                    return dict(answer["result"])

    async def open(self, url: str) -> None:
        """Go to a page, and return once it has loaded."""
        await self.value("window.isLeft = true")
        await self.call("Page.navigate", url=url)
        await self.until("!window.isLeft && document.readyState === 'complete'")

    async def value(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        given = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        found = await self.call("Runtime.evaluate", **given)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, expression: str) -> None:
        """Return once an expression in the page is true.

        Raises:
            TimeoutError: it was not within a minute.
        """
        async with asyncio.timeout(_SECONDS):
            while not await self._is(expression):
                await asyncio.sleep(0.05)

    async def _is(self, expression: str) -> bool:
        given = {"expression": f"Boolean({expression})", "returnByValue": True}
        found = await self.call("Runtime.evaluate", **given)
        return found["result"].get("value") is True  # not while a page is left

    async def press(self, key: str, *, times: int = 1) -> None:
        """Press a key."""
        for _ in range(times):
            given = {"key": key, "code": key, "windowsVirtualKeyCode": _KEYS[key]}
            more = {"text": "\r"} if key == "Enter" else {}
            await self.call("Input.dispatchKeyEvent", type="keyDown", **given, **more)
            await self.call("Input.dispatchKeyEvent", type="keyUp", **given)

    async def type(self, text: str) -> None:
        """Type a text where the focus is."""
        await self.call("Input.insertText", text=text)

    async def picture(self) -> bytes:
        """Return what is seen, as PNG."""
        found = await self.call("Page.captureScreenshot")
        return base64.b64decode(found["data"])

    async def look_like(
        self,
        width: int,
        height: int,
        *,
        dark: bool = False,
        scripts: bool = True,
        scale: int = 1,
    ) -> None:
        """Choose the size of the window, its colours, and whether scripts run."""
        size = {"width": width, "height": height, "deviceScaleFactor": scale}
        await self.call("Emulation.setDeviceMetricsOverride", mobile=False, **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])
        await self.call("Emulation.setScriptExecutionDisabled", value=not scripts)


@asynccontextmanager
async def opened_tab(program: str) -> AsyncIterator[Tab]:
    """Start a browser with no memory; yields its only tab."""
    with running(program) as port:
        async with tab_of(port) as tab:
            yield tab


@contextmanager
def running(program: str) -> Iterator[int]:
    """Start a browser with no memory; yields the port that it is driven by."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        process = subprocess.Popen(  # noqa: S603 - Chromium, with our own arguments
            [
                program,
                *FLAGS,
                "--remote-debugging-port=0",
                f"--user-data-dir={home}/profile",
                "about:blank",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"HOME": home, "PATH": os.environ["PATH"], "LANG": "C.UTF-8"},
            start_new_session=True,
        )
        try:
            yield _port(Path(home) / "profile" / "DevToolsActivePort")
        finally:
            with suppress(ProcessLookupError):  # it starts others, which may outlive it
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@asynccontextmanager
async def tab_of(port: int) -> AsyncIterator[Tab]:
    """Yield a tab of a browser that runs, which knows nothing of its other tabs."""
    place = f"http://127.0.0.1:{port}"
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        async with http.get(f"{place}/json/version") as found:
            address = (await found.json())["webSocketDebuggerUrl"]
        socket = http.ws_connect(address, max_msg_size=0)
        whole = Tab(await stack.enter_async_context(socket))
        mine = await whole.call("Target.createBrowserContext")
        stack.push_async_callback(whole.call, "Target.disposeBrowserContext", **mine)
        target = await whole.call("Target.createTarget", url="about:blank", **mine)
        address = f"{place}/devtools/page/{target['targetId']}"
        socket = http.ws_connect(address, max_msg_size=0)
        tab = Tab(await stack.enter_async_context(socket))
        await tab.call("Page.enable")
        yield tab


def _port(path: Path) -> int:
    until = time.monotonic() + _SECONDS
    while True:
        with suppress(OSError, ValueError, IndexError):
            return int(path.read_text().splitlines()[0])
        assert time.monotonic() < until, "the browser does not start"
        time.sleep(0.05)

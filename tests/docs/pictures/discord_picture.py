"""The picture of a Discord message: the body of config/presets/chat.md, drawn.

The elements that draw it are those of the npm package @skyra/discord-components-core,
in a folder of ``NODE_PATH``. They imitate Discord's own page, which is not to be had.
"""

import asyncio
import html
import json
import os
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from tests.docs.pictures.screenshot_texts import REBOOT_OF_IMDS
from tests.support.browser import find

_PRESET: Final = Path(__file__).parents[3] / "config" / "presets" / "chat.md"
_CORE: Final = "@skyra/discord-components-core/dist"
_MAP: Final = {
    "lit": "/lit/index.js",
    "lit/": "/lit/",
    "lit-html": "/lit-html/lit-html.js",
    "lit-html/": "/lit-html/",
    "lit-element/lit-element.js": "/lit-element/lit-element.js",
    "@lit/context": "/@lit/context/index.js",
    "@lit/reactive-element": "/@lit/reactive-element/reactive-element.js",
    "@lit/reactive-element/": "/@lit/reactive-element/",
}
_AVATAR: Final = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg'%3E"
    "%3Crect width='100%25' height='100%25' fill='%235865f2'/%3E%3C/svg%3E"
)
_PAGE: Final = """<!doctype html><meta charset="utf-8"><title>Discord</title>
<script type="importmap">{imports}</script>
<script type="module">import "/{core}/index.js";</script>
<style>body {{ margin: 0; background: #323339 }}
discord-messages {{ border: 0; font-family: "gg sans", Lato, sans-serif }}</style>
<discord-messages><discord-message author="Maintenance" avatar="{avatar}" bot
timestamp="{time}">
<discord-embed slot="embeds" color="#{color:06x}" embed-title="{title}">
<discord-embed-fields slot="fields">{fields}</discord-embed-fields>
<discord-embed-footer slot="footer" timestamp="{time}"></discord-embed-footer>
</discord-embed></discord-message></discord-messages>"""


async def picture() -> bytes:
    """Return a reboot as Discord is sent it, drawn by elements like Discord's."""
    app = web.Application()
    page = _page(await asyncio.to_thread(_embed))
    app.router.add_get(
        "/", lambda _: _answered(web.Response(text=page, content_type="text/html"))
    )
    app.router.add_static("/", _modules())
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    browser = find()
    if browser is None:
        sys.exit("there is no Chromium here")
    try:
        host, port = runner.addresses[0][:2]
        return await browser.picture(f"http://{host}:{port}/", 700, 390)
    finally:
        await runner.cleanup()


async def _answered(response: web.Response) -> web.Response:
    return response


def _modules() -> Path:
    for folder in os.environ.get("NODE_PATH", "").split(os.pathsep):
        if (Path(folder) / _CORE).is_dir():
            return Path(folder)
    sys.exit("@skyra/discord-components-core is not in NODE_PATH")


def _embed() -> dict[str, Any]:
    """Return what the template of the page makes of a reboot."""
    _, _, rest = _PRESET.read_text("utf-8").partition("## Discord")
    sink = rest.split("```toml\n", 1)[1].split("\n```\n", 1)[0]
    with tempfile.TemporaryDirectory() as name:
        config, event = Path(name) / "c.toml", Path(name) / "event.json"
        state = (Path(name) / "state.db").as_posix()
        known = f'[identity]\nvm_name = "web-1"\n[state]\npath = "{state}"\n'
        config.write_text(known + sink, "utf-8")
        event.write_text(json.dumps(REBOOT_OF_IMDS), "utf-8")
        command = (sys.executable, "-m", "bridge", "render", "-c", str(config))
        said = subprocess.check_output(  # noqa: S603 - our own program
            [*command, "--sink", "discord", "--event", str(event)],
            env={**os.environ, "DISCORD_URL": "https://discord.example/api/webhooks/1"},
        )
    (embed,) = json.loads(said.split(b"\n\n", 1)[1])["embeds"]
    found: dict[str, Any] = embed
    return found


def _page(embed: dict[str, Any]) -> str:
    fields = "".join(
        f'<discord-embed-field field-title="{html.escape(field["name"])}">'
        f"<discord-pre>{html.escape(field['value'].strip('`'))}</discord-pre>"
        "</discord-embed-field>"
        for field in embed["fields"]
    )
    return _PAGE.format(
        imports=json.dumps({"imports": _MAP}),
        core=_CORE,
        avatar=_AVATAR,
        time=f"{datetime.fromisoformat(embed['timestamp']):%m/%d/%Y %H:%M}",
        color=embed["color"],
        title=html.escape(embed["title"]),
        fields=fields,
    )

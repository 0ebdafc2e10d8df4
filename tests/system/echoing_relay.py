"""A mail relay that gives back all that it was told, in each of its replies."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

# What it answers to AUTH and to the mail, for whom: see ``canaries.servers``.
_REPLIES = {
    "200": ("235 2.7.0", "250 2.0.0"),
    "302": ("235 2.7.0", "451 4.3.0"),
    "400": ("235 2.7.0", "550 5.7.1"),
    "403": ("535 5.7.8", "250 2.0.0"),
    "503": ("454 4.7.0", "250 2.0.0"),
}


class Relay:
    """Speaks as much of SMTP (RFC 5321, 4954) as one mail needs.

    Attributes:
        mails: what it was sent, with head and body.
        logged_in: the hosts that tried to log in.
    """

    def __init__(self) -> None:
        self.mails: list[bytes] = []
        self.logged_in: set[str] = set()

    async def talk(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        host, received = "", b""
        writer.write(b"220 relay\r\n")
        while line := await reader.readline():
            verb, _, rest = line.strip().partition(b" ")
            if verb == b"EHLO":
                host = rest.decode().partition(".")[0]
                writer.write(b"250-relay\r\n250 AUTH PLAIN\r\n")
            elif verb == b"AUTH":
                given = rest.rpartition(b" ")[2]
                received = given + b" " + base64.b64decode(given).replace(b"\0", b" ")
                self.logged_in.add(host)
                writer.write(_REPLIES[host][0].encode() + b" " + received + b"\r\n")
            elif verb == b"DATA":
                writer.write(b"354 go on\r\n")
                self.mails.append(await reader.readuntil(b"\r\n.\r\n"))
                writer.write(_REPLIES[host][1].encode() + b" " + received + b"\r\n")
            else:
                writer.write(b"250 " + received + b"\r\n")
        writer.close()


@asynccontextmanager
async def echoing_relay() -> AsyncIterator[tuple[Relay, int]]:
    """Run one on a port of its own."""
    relay = Relay()
    server = await asyncio.start_server(relay.talk, "127.0.0.1", 0)
    async with server:
        yield relay, server.sockets[0].getsockname()[1]

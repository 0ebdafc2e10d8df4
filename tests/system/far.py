"""A peer that is 20 ms away, on this machine: ``unshare -rn python -m …``.

In a network of its own, packets to one address leave through a device that this
process reads (tun); it swaps their two addresses, so that they come back as if from
the other one, half a round trip later. So the acknowledgements of the kernel are as
late as they are from far away, which no proxy on loopback can have.

Prints how long messages of the syslog sink took: ``{"alone": …, "stream": …}``.
"""

import asyncio
import fcntl
import json
import os
import struct
import subprocess
import sys
from contextlib import suppress
from time import monotonic

from bridge.sinks.syslog.wire import Stream

ROUND_TRIP = 0.02
EVERY = 0.005  # seconds from one message of the stream to the next
COUNT = 200
_HERE, _THERE = "10.99.0.1", "10.99.0.2"
_TUNSETIFF, _TUN_WITHOUT_HEADER = 0x400454CA, 0x1001


def why_not() -> str | None:
    """Return why this machine has no such peer; None if it has."""
    command = ["unshare", "-rn", sys.executable, "-m", __name__, "probe"]
    try:
        tried = subprocess.run(  # noqa: S603  this file
            command, capture_output=True, timeout=120, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return tried.stderr.decode()[-200:] if tried.returncode else None


def _device() -> int:
    """Make the device, and return its descriptor."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    request = struct.pack("16sH", b"far0", _TUN_WITHOUT_HEADER)
    fcntl.ioctl(device, _TUNSETIFF, request)
    for command in (f"addr add {_HERE}/24 dev far0", "link set far0 up"):
        subprocess.run(["ip", *command.split()], check=True)  # noqa: S603, S607
    return device


def _reflect(device: int) -> None:
    """Send packets back later, each with its two addresses swapped.

    Its checksums stay right: they are sums.
    """
    loop = asyncio.get_running_loop()
    with suppress(BlockingIOError):
        while packet := os.read(device, 65536):
            back = packet[:12] + packet[16:20] + packet[12:16] + packet[20:]
            loop.call_later(ROUND_TRIP / 2, os.write, device, back)


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(asyncio.CancelledError):  # the end of all this
        while await reader.read(65536):
            pass
    writer.close()


async def _measured(wire: Stream) -> tuple[float, float]:
    """Return when a message was sent, and when it was acknowledged."""
    began = monotonic()
    await wire.send(b"x" * 1000)
    return began, monotonic()


async def main() -> None:
    """Send messages one by one, and then each without waiting for those before."""
    device = _device()
    asyncio.get_running_loop().add_reader(device, _reflect, device)
    server = await asyncio.start_server(_serve, _HERE, 0)
    port = server.sockets[0].getsockname()[1]
    wire = Stream(host=_THERE, port=port, timeout=30)
    alone = [await _measured(wire) for _ in range(20)]
    tasks = []
    for _ in range(COUNT):
        tasks.append(asyncio.create_task(_measured(wire)))
        await asyncio.sleep(EVERY)
    stream = await asyncio.gather(*tasks)
    await wire.close()
    server.close()
    print(json.dumps({"alone": alone, "stream": stream}))  # noqa: T201 - the result


if __name__ == "__main__":
    if sys.argv[1:] == ["probe"]:
        _device()
    else:
        asyncio.run(main())

"""A real rsyslog on loopback: an independent reader of what the syslog sink writes.

It parses RFC 5424, the structured data (mmpstrucdata) and CEF (mmnormalize), and writes
what it has understood as lines of JSON.
"""

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.ports import free_port

LIBRARIES = Path("/usr/lib")
PROGRAM = shutil.which("rsyslogd", path="/usr/sbin:/usr/bin:/sbin")

_CONFIG = """
global(workDirectory="{folder}" net.enableDNS="off" maxMessageSize="64k"
       parser.escapeControlCharactersOnReceive="off" shutdown.queue.doubleSize="on")
module(load="imtcp" maxSessions="50")
module(load="imudp")
module(load="mmnormalize")
module(load="mmpstrucdata")
template(name="parsed" type="list" option.jsonf="on") {{
  property(outname="pri" name="pri" format="jsonf")
  property(outname="facility" name="syslogfacility-text" format="jsonf")
  property(outname="severity" name="syslogseverity-text" format="jsonf")
  property(outname="version" name="protocol-version" format="jsonf")
  property(outname="time" name="timereported" dateFormat="rfc3339" format="jsonf")
  property(outname="host" name="hostname" format="jsonf")
  property(outname="app" name="app-name" format="jsonf")
  property(outname="procid" name="procid" format="jsonf")
  property(outname="msgid" name="msgid" format="jsonf")
  property(outname="sd" name="structured-data" format="jsonf")
  property(outname="msg" name="msg" format="jsonf")
  property(outname="tree" name="$!" format="jsonf")
}}
input(type="imudp" address="127.0.0.1" port="{udp}" name="udp")
input(type="imtcp" address="127.0.0.1" port="{tcp}" name="tcp")
{tls}
action(type="mmpstrucdata")
if $msg startswith "CEF:" then {{
  action(type="mmnormalize" rulebase="{folder}/cef.rb" useRawMsg="off")
}}
action(type="omfile" file="{folder}/parsed.jsonl" template="parsed")
"""
_TLS = """
input(type="imtcp" address="127.0.0.1" port="{port}" name="{name}"
      streamDriver.name="gtls" streamDriver.mode="1" streamDriver.authMode="{auth}"
      streamDriver.caFile="{folder}/ca.pem" streamDriver.certFile="{folder}/server.pem"
      streamDriver.keyFile="{folder}/server.key")
"""


def why_not(*modules: str) -> str:
    """Return why rsyslog cannot be used here; "" if it can."""
    if PROGRAM is None:
        return "rsyslog is not installed"
    absent = [
        name for name in modules if not list(LIBRARIES.glob(f"*/rsyslog/{name}.so"))
    ]
    return f"rsyslog has no {', '.join(absent)}" if absent else ""


@dataclass(slots=True)
class Rsyslog:
    """A running one.

    Attributes:
        ports: by name: udp, tcp and, with certificates in its folder, tls (any
            client) and mtls (a client with a certificate).
    """

    folder: Path
    ports: dict[str, int] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None
    _seen: int = 0

    def start(self) -> None:
        with_tls = (self.folder / "ca.pem").exists()
        for name in ("tcp", *(("tls", "mtls") if with_tls else ())):
            self.ports.setdefault(name, free_port())
        self.ports.setdefault("udp", free_port(socket.SOCK_DGRAM))
        config = _CONFIG.format(
            folder=self.folder, **{**self.ports, "tls": self._tls() if with_tls else ""}
        )
        (self.folder / "cef.rb").write_text("version=2\nrule=:%cef:cef%\n")
        (self.folder / "rsyslog.conf").write_text(config)
        log = self.folder / "log"
        command = [PROGRAM or "", "-n", "-f", f"{self.folder}/rsyslog.conf"]
        with log.open("ab") as out:
            self._process = subprocess.Popen(  # noqa: S603 - our own arguments
                [*command, "-i", f"{self.folder}/pid"], stdout=out, stderr=out
            )
        for name in self.ports.keys() - {"udp"}:
            self._wait_for(self.ports[name], log)

    def _tls(self) -> str:
        auths = {"tls": "anon", "mtls": "x509/certvalid"}
        return "".join(
            _TLS.format(folder=self.folder, port=self.ports[name], name=name, auth=auth)
            for name, auth in auths.items()
        )

    def _wait_for(self, port: int, log: Path) -> None:
        for _ in range(6000):
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return
            time.sleep(0.01)
        raise AssertionError(log.read_text())

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            process.wait(60)

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(60)

    def received(self, count: int = 1) -> list[dict[str, Any]]:
        """Return the next messages, as rsyslog has understood them."""
        path = self.folder / "parsed.jsonl"
        lines: list[str] = []
        for _ in range(6000):
            text = path.read_bytes().decode() if path.exists() else ""
            lines = text.split("\n")[self._seen : -1]
            if len(lines) >= count:
                break
            time.sleep(0.01)
        self._seen += len(lines)
        messages = [json.loads(line) for line in lines]
        assert len(messages) == count, (self.folder / "log").read_text()
        return [{**m, "tree": json.loads(m["tree"] or "{}")} for m in messages]


@contextmanager
def running(folder: Path) -> Iterator[Rsyslog]:
    rsyslog = Rsyslog(folder)
    rsyslog.start()
    try:
        yield rsyslog
    finally:
        rsyslog.kill()

"""Runs on the VM: records what IMDS answers, and what the bridge sends to Slack.

It needs nothing but Python. The records are lines of JSON that outlive a reboot:

    probe     what IMDS says to one wrong or harmless request: once
    document  each answer to a GET of the document that differs from the one before
    trouble   IMDS gave no answer
    slack     a POST to the port that stands in for Slack

It asks IMDS once a second; the service allows five requests a second to a VM.
"""

import argparse
import http.client
import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_EVENTS = "/metadata/scheduledevents"
_NEWEST = "?api-version=2020-07-01"
_COMPUTE = "/metadata/instance/compute?api-version=2021-02-01"
# Of the instance's metadata, only what the bridge reads: the rest may be secret.
_READ = ("location", "name", "resourceId", "vmId", "vmScaleSetName")
_UNKNOWN = {"StartRequests": [{"EventId": "00000000-0000-4000-8000-000000000000"}]}
_PATIENCE = 130  # seconds; the first request ever may take two minutes
_MOST = 1 << 20

# Name: method, path, headers, body. No request starts an event.
_PROBES: Mapping[str, tuple[str, str, Mapping[str, str], bytes | None]] = {
    "the document": ("GET", _EVENTS + _NEWEST, {"Metadata": "true"}, None),
    "no Metadata header": ("GET", _EVENTS + _NEWEST, {}, None),
    "no api-version": ("GET", _EVENTS, {"Metadata": "true"}, None),
    "an unknown api-version": (
        "GET",
        _EVENTS + "?api-version=1999-01-01",
        {"Metadata": "true"},
        None,
    ),
    "a forwarded request": (
        "GET",
        _EVENTS + _NEWEST,
        {"Metadata": "true", "X-Forwarded-For": "10.0.0.9"},
        None,
    ),
    "a StartRequest that is no JSON": (
        "POST",
        _EVENTS + _NEWEST,
        {"Metadata": "true"},
        b"{",
    ),
    "a StartRequest for an unknown EventId": (
        "POST",
        _EVENTS + _NEWEST,
        {"Metadata": "true"},
        json.dumps(_UNKNOWN).encode(),
    ),
    "instance metadata": ("GET", _COMPUTE, {"Metadata": "true"}, None),
}


class Records:
    """A file of lines of JSON; a line is on the disk before ``add`` returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def add(self, kind: str, **what: object) -> None:
        """Append a line, with the time."""
        line = {"kind": kind, "at": datetime.now(UTC).isoformat(), **what}
        with self._lock, self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def last(self, kind: str) -> dict[str, object] | None:
        """Return the newest line of this kind."""
        found = None
        for line in self._lines():
            found = line if line["kind"] == kind else found
        return found

    def _lines(self) -> Iterator[dict[str, object]]:
        if self._path.exists():
            for text in self._path.read_text("utf-8").splitlines():
                try:
                    yield json.loads(text)
                except (
                    ValueError
                ):  # the last line, if the power went while it was written
                    continue


class Imds:
    """Asks IMDS, past every proxy.

    Args:
        url: where it listens.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

    def ask(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None
    ) -> dict[str, object]:
        """Return the status, headers and body of an answer.

        Raises:
            OSError: there was none.
        """
        request = urllib.request.Request(  # noqa: S310 - IMDS speaks http
            self._url + path, body, dict(headers), method=method
        )
        if body is not None:
            request.add_header("Content-Type", "application/json")
        try:
            with self._open(request, timeout=_PATIENCE) as response:  # IMDS alone  # nosec B310
                return _answer(response.status, response.headers, response.read())
        except urllib.error.HTTPError as error:
            return _answer(error.code, error.headers, error.read())
        except http.client.HTTPException as error:
            raise OSError(type(error).__name__) from error


def _answer(status: int, headers: object, body: bytes) -> dict[str, object]:
    return {
        "status": status,
        "headers": dict(headers.items()),  # type: ignore[attr-defined]  # of two kinds
        "body": body.decode(errors="replace"),
    }


def _without_secrets(answer: dict[str, object]) -> dict[str, object]:
    """Return an answer about the instance with only what the bridge reads."""
    try:
        compute = json.loads(str(answer["body"]))
        kept = {name: compute.get(name) for name in _READ}
    except (ValueError, AttributeError):
        return {**answer, "body": "(left out: not what it should be)"}
    return {**answer, "body": json.dumps(kept)}


def probe(imds: Imds, records: Records, pause: float) -> None:
    """Send each wrong or harmless request once, unless an earlier run did."""
    if records.last("probe"):
        return
    for name, (method, path, headers, body) in _PROBES.items():
        try:
            answer = imds.ask(method, path, headers, body)
        except OSError as error:
            answer = {"status": 0, "headers": {}, "body": type(error).__name__}
        if path == _COMPUTE:
            answer = _without_secrets(answer)
        records.add("probe", name=name, **answer)
        time.sleep(pause)


def watch(imds: Imds, records: Records, every: float) -> None:
    """Record each new answer of IMDS; never ends."""
    last = records.last("document") or {}
    seen = last.get("status"), last.get("body")
    is_silent = False
    while True:
        try:
            answer = imds.ask("GET", _EVENTS + _NEWEST, {"Metadata": "true"}, None)
        except OSError as error:
            if not is_silent:
                records.add("trouble", error=type(error).__name__)
            is_silent = True
        else:
            is_silent = False
            if (answer["status"], answer["body"]) != seen:
                seen = answer["status"], answer["body"]
                records.add("document", **answer)
        time.sleep(every)


def slack(port: int, records: Records) -> ThreadingHTTPServer:
    """Return a server that stands in for Slack's incoming webhooks."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            size = min(int(self.headers.get("Content-Length") or 0), _MOST)
            body = self.rfile.read(size).decode(errors="replace")
            headers = {"Content-Type": self.headers.get("Content-Type")}
            records.add("slack", path=self.path, headers=headers, body=body)
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_: object) -> None:
            """Say nothing: the records have it."""

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def main() -> None:
    """Record until the process is killed."""
    words = argparse.ArgumentParser(description="Record IMDS and Slack.")
    words.add_argument("--out", type=Path, required=True, help="where the records go")
    words.add_argument("--imds", default="http://169.254.169.254")
    words.add_argument("--port", type=int, default=9470, help="of the Slack stand-in")
    words.add_argument("--every", type=float, default=1.0, help="seconds between looks")
    given = words.parse_args()
    records, imds = Records(given.out), Imds(given.imds.rstrip("/"))
    server = slack(given.port, records)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    probe(imds, records, given.every / 2)
    watch(imds, records, given.every)


if __name__ == "__main__":
    main()

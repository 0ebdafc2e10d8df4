"""What is wrong with a URL or a host in the configuration, told before the start.

No text repeats anything of a URL: what stands in it may be a secret.
"""

import re
from urllib.parse import urlsplit

from bridge.net.ssrf_guard import forbidden_host

_HTTP = "an http:// or https:// URL"
_NO_PART_OF_HOST = frozenset('<>"{}|\\^`*')
_LONGEST_LABEL = 63
_HIGHEST_PORT = 65535
_ENDS = re.compile(r"[/?#]")  # of what stands before the path


def url_fault(url: str, wanted: str = _HTTP) -> str | None:
    """Return why a URL cannot be called; None = it can be.

    Args:
        url: absolute, with a host.
        wanted: what it must be, as a person is told.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return f"must be {wanted}"
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        return f"must be {wanted}"
    if what := _shape_fault(_written_host(url)):
        return what
    try:
        is_port = parts.port != 0
    except ValueError:
        is_port = False
    return None if is_port else "must have a port of 1 to 65535"


def _written_host(url: str) -> str:
    """Return host and port as written: urlsplit drops tabs and ends of lines."""
    authority = _ENDS.split(url.strip().partition("//")[2], maxsplit=1)[0]
    return authority.rpartition("@")[2]


def target_fault(url: str, wanted: str = _HTTP) -> str | None:
    """Return why nothing is sent to a URL: ``url_fault``, or the guard forbids it."""
    return url_fault(url, wanted) or _guarded(urlsplit(url).hostname or "")


def host_fault(host: str) -> str | None:
    """Return why nothing is sent to a host; None = it may be."""
    return _shape_fault(host) or _guarded(host)


def _shape_fault(host: str) -> str | None:
    if not host.isprintable() or any(sign.isspace() for sign in host):
        return "must have no blank in its host"
    if not _NO_PART_OF_HOST.isdisjoint(host):
        return "must have a host name or an IP address as its host"
    return None


def _guarded(host: str) -> str | None:
    if not all(0 < len(part) <= _LONGEST_LABEL for part in _labels(host)):
        return "must have a host name or an IP address as its host"
    if (why := forbidden_host(host)) is not None:
        return f"leads where nothing is sent: {why}"
    return None


def _labels(host: str) -> list[str]:
    return host.removesuffix(".").split(".")


def is_listen_address(text: str) -> bool:
    """Whether a text is ``host:port``, with a host: where to listen."""
    host, _, port = text.rpartition(":")
    is_port = port.isascii() and port.isdigit() and int(port) <= _HIGHEST_PORT
    return bool(host) and is_port and not any(sign.isspace() for sign in host)


def split_address(text: str) -> tuple[str, int]:
    """Return host and port of an address to listen on; brackets go."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)

"""The values of options: spans of time, sizes, rates, secrets, paths, placeholders."""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self
from urllib.parse import parse_qsl, urlsplit

_BOMS = {
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_RAREST, _MOST_OFTEN = 1e-4, 1e5
_LONGEST = 1e9  # thirty years; a date plus this value does not overflow
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)?")
_BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_BYTES |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_SIZE = re.compile(r"([0-9]{1,15})\s*(B|[KMG]i?B)?")
_SECRETIVE = re.compile(
    r"auth|code|cookie|credential|key|passw|secret|\bsig\b|signature|token",
    re.IGNORECASE,
)
_VARIABLE = re.compile(r"\$\{([^{}]*)\}")
# A misspelt reference, such as "evn:NAME". What follows the colon distinguishes it
# from a secret that contains a colon.
_REFERENCES = {
    "env": re.compile(r"([A-Za-z]{2,5}):[A-Za-z_][A-Za-z0-9_]*"),
    "file": re.compile(r"([A-Za-z]{2,5}):(?!//)(?:[/.~$\\]|[A-Za-z]:).*"),
}
PLACEHOLDERS = ("vm_id", "vm_name", "group")


class Duration(float):
    """A span of time in seconds, written ``1.5`` or ``"500ms"``, ``"24h"``."""

    __slots__ = ()

    @classmethod
    def parse(cls, value: object) -> Self:
        """Convert a number of seconds or a string with a unit.

        Raises:
            ValueError: the value is neither, negative, or too large.
        """
        seconds: float = -1
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            seconds = value
        elif isinstance(value, str) and (m := _DURATION.fullmatch(value.strip())):
            seconds = float(m[1]) * _UNITS[m[2] or "s"]
        if 0 <= seconds <= _LONGEST:
            return cls(seconds)
        raise ValueError(
            "must be a number of seconds or a string with a unit, "
            'such as "500ms", "30s", "5m", "24h" or "7d"'
            + _respelt(value, _DURATION, _UNITS)
        )


class Size(int):
    """A number of bytes, written ``1000000`` or ``"256MB"``, ``"1GiB"``."""

    __slots__ = ()

    @classmethod
    def parse(cls, value: object) -> Self:
        """Convert a number of bytes or a string with a unit.

        Raises:
            ValueError: the value is neither, or negative.
        """
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return cls(value)
        if isinstance(value, str) and (m := _SIZE.fullmatch(value.strip())):
            return cls(int(m[1]) * _BYTES[m[2] or "B"])
        raise ValueError(
            "must be a number of bytes or a string with a unit, "
            'such as "500KB", "256MB" or "1GB"' + _respelt(value, _SIZE, _BYTES)
        )


def _respelt(
    value: object, pattern: re.Pattern[str], units: Mapping[str, object]
) -> str:
    """Return a hint if the unit of a value is wrong only in its case; else ""."""
    spelt = re.fullmatch(r"([0-9.]+\s*)([A-Za-z]+)", str(value).strip())
    for unit in units if spelt else ():
        if spelt and unit.lower() == spelt[2].lower():
            text = f"{spelt[1]}{unit}"
            if pattern.fullmatch(text):
                return f'; did you mean "{text}"? Case makes a difference here'
    return ""


class Rate(float):
    """How often something may happen, in times per second."""

    __slots__ = ()

    @classmethod
    def parse(cls, value: object) -> Self:
        """Convert a number, or the text of a number from an environment variable.

        Raises:
            ValueError: the value is not a number from 0.0001 to 100000.
        """
        is_written = isinstance(value, str) and _NUMBER.fullmatch(value.strip())
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if is_written or is_number:
            rate = float(value)  # type: ignore[arg-type]  # is_written or is_number
            if _RAREST <= rate <= _MOST_OFTEN:
                return cls(rate)
        raise ValueError(
            "must be a number, times a second: from 0.0001 to 100000, such as 1 or 0.5"
        )


class Secret:
    """A value that is never shown: given literally, as ``env:NAME`` or ``file:PATH``.

    A path may contain ``${NAME}``, an environment variable such as systemd's
    ``${CREDENTIALS_DIRECTORY}``. A file is read at each use, so a rotated secret is
    used without a restart. This is not a dataclass, because msgspec would convert a
    table into one.
    """

    __slots__ = ("_held", "environ", "reference")

    def __init__(self, reference: str, environ: Mapping[str, str]) -> None:
        self.reference = reference
        self.environ = environ
        self._held: str | None = None

    def __repr__(self) -> str:
        return "<secret>"

    @property
    def is_literal(self) -> bool:
        """Whether the configuration contains the secret itself, not a reference."""
        return not self.reference.startswith(("env:", "file:"))

    @property
    def file(self) -> Path | None:
        """The file of a ``file:PATH`` reference; None for any other secret.

        Raises:
            ValueError: a variable in the path is not set.
        """
        return self._path() if self.reference.startswith("file:") else None

    def _path(self) -> Path:
        name = self.reference.removeprefix("file:")
        if not name.strip():
            raise ValueError("names no file: write file:PATH")
        return Path(_filled_in(name, self.environ))

    def reveal(self) -> str:
        """Return the secret itself.

        Raises:
            ValueError: the variable is not set or the file cannot be read.
        """
        if self.reference.startswith("env:"):
            name = self.reference.removeprefix("env:")
            if not name.strip():
                raise ValueError("names no variable: write env:NAME")
            return _variable(name, self.environ)
        if not self.reference.startswith("file:"):
            return self.reference
        try:
            return _read_secret_file(self._path())
        except ValueError as error:
            if self._held is None or not isinstance(error.__cause__, PermissionError):
                raise
            return self._held

    def hold(self) -> None:
        """Keep the secret for when this process may not read its file any more."""
        with suppress(ValueError):
            self._held = self.reveal()


class FilePath:
    """The path of a file that a library reads, such as OpenSSL.

    The path may contain ``${NAME}``, as the path of a ``Secret``. This is not a
    dataclass, for the same reason as ``Secret``.
    """

    __slots__ = ("_held", "environ", "text")

    def __init__(self, text: str, environ: Mapping[str, str]) -> None:
        self.text = text
        self.environ = environ
        self._held: Path | None = None

    def __repr__(self) -> str:
        return f"FilePath({self.text!r})"

    @property
    def path(self) -> Path:
        """The path, with its variables replaced.

        Raises:
            ValueError: a variable in the path is not set.
        """
        path = Path(_filled_in(self.text, self.environ))
        if self._held is not None and not os.access(path, os.R_OK):
            return self._held
        return path

    def hold(self) -> None:
        """Keep the content for when this process may not read the file any more.

        The copy is in memory; only Linux has files there.
        """
        if sys.platform != "linux":
            return
        with suppress(OSError, ValueError):
            content = self.path.read_bytes()
            number = os.memfd_create("held")
            with open(number, "wb", closefd=False) as copy:
                copy.write(content)
            self._held = Path(f"/proc/self/fd/{number}")


class PublicKeys(Secret):
    """Where public keys are: ``file:PATH`` or ``env:NAME``.

    They are no secret. The file may be missing at the start: it is read at each use.
    """

    __slots__ = ()

    @property
    def is_literal(self) -> bool:
        """Never: a key is not written into the configuration."""
        return False


class Address(Secret):
    """A URL or header value. It may be a secret, or harmless text in the file."""

    __slots__ = ()

    def holds_secret(self, key: str) -> bool:
        """Whether the key's name or the parts of the URL suggest a secret."""
        return bool(_SECRETIVE.search(key)) or _holds_secret(self.reference)


_OF_SHELL = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})")


def misspelt_reference(text: str) -> str | None:
    """Return a fault if a secret looks like a misspelt ``env:`` or ``file:``.

    The fault repeats only the part of the text before the colon, or the name of a
    variable of a shell.
    """
    if found := _OF_SHELL.fullmatch(text):
        name = found[1] or found[2]
        return f"{text!r} is not filled in here; did you mean 'env:{name}'?"
    for scheme, pattern in _REFERENCES.items():
        found = pattern.fullmatch(text)
        if found and found[1] != scheme and _is_slip(found[1].lower(), scheme):
            return (
                f"{found[1] + ':'!r} is no reference; did you mean '{scheme}:'? "
                "A secret that begins so is given by env:NAME or file:PATH"
            )
    return None


def _is_slip(word: str, meant: str) -> bool:
    """Return whether a word has one letter too many, too few, wrong, or swapped."""
    if sorted(word) == sorted(meant):
        return True
    longer, other = sorted((word, meant), key=len, reverse=True)
    return any(
        longer[:n] + longer[n + 1 :]
        == (other if len(other) < len(longer) else other[:n] + other[n + 1 :])
        for n in range(len(longer))
    )


def text_of(content: bytes) -> str:
    """Return the text of a file.

    Raises:
        ValueError: the file is not UTF-8; the text names its encoding if known.
    """
    for mark, name in _BOMS.items():
        if content.startswith(mark):
            raise ValueError(f"{name} text, and must be UTF-8: save it as that")
    try:
        text = content.decode("utf-8-sig")  # Windows editors write a BOM
    except UnicodeDecodeError as error:
        raise ValueError("not UTF-8 text") from error
    if "\0" in text[:4]:  # UTF-16 without a byte order mark begins like this
        raise ValueError("UTF-16 text, and must be UTF-8: save it as that")
    return text


def _filled_in(text: str, environ: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda found: _variable(found[1], environ), text)


def _variable(name: str, environ: Mapping[str, str]) -> str:
    if value := environ.get(name):
        return value
    text = f"the environment variable {name} is not set"
    if name != _CREDENTIALS:
        raise ValueError(text)
    if _is_root() and _SECRETS.is_dir():
        return str(_SECRETS)
    raise ValueError(
        f"{text}: systemd sets it for the service; at a shell, run "
        f"`sudo env {_CREDENTIALS}={_SECRETS} sebridge …`"
    )


def _is_root() -> bool:
    return sys.platform != "win32" and os.geteuid() == 0


def _holds_secret(url: str) -> bool:
    """Return whether a URL seems to contain credentials, also in its query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    names = [name for name, _ in parse_qsl(parts.query)]
    return "@" in parts.netloc or any(map(_SECRETIVE.search, names))


def _read_secret_file(path: Path) -> str:
    try:
        text = text_of(path.read_bytes()).strip()
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or str(error)
        raise ValueError(f"the file {path} cannot be read ({cause})") from error
    if not text:
        raise ValueError(f"the file {path} is empty")
    return text


_CREDENTIALS = "CREDENTIALS_DIRECTORY"
_SECRETS = Path("/etc/sebridge/secrets")  # systemd gives the service a copy of it
_BRACES = re.compile(r"\{[^{}]*\}?|\}")


def unknown_placeholders(text: str) -> tuple[str, ...]:
    """Return unknown placeholders such as ``{name}``, and unmatched braces."""
    known = {f"{{{name}}}" for name in PLACEHOLDERS}
    return tuple(part for part in _BRACES.findall(text) if part not in known)


def placeholder_faults(text: str) -> Iterator[str]:
    """Yield a fault for each unknown placeholder and each unmatched brace."""
    known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
    for part in unknown_placeholders(text):
        yield f"{part!r} is no placeholder; allowed are {known}"

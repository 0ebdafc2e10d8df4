"""What stands in for secrets that are not to be had here, so that the rest is read.

A person at a shell, or a build server, has not the secrets of the service. What he
only wants to look at (``sebridge render``) hardly depends on them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from bridge.foundation.values import Secret

_HOST = "unknown.invalid"
_VARIABLE = "a stand-in for "  # no variable of the environment is called so
_ANY_SECRET = f"whsec_{'A' * 32}"  # as long, and of the form, that any key asks for
_BY_KEY = {
    "connection_string": (
        f"Endpoint=sb://{_HOST};SharedAccessKeyName=none;SharedAccessKey=none"
    ),
    "http_proxy": f"https://{_HOST}",
    "proxy": f"https://{_HOST}",
    "url": f"https://{_HOST}",
    "webhook_url": f"https://{_HOST}",
}
# Files that only a connection needs, and whose reading takes the service's rights.
_FOR_TLS = frozenset({"ca_file", "client_certificate", "client_key"})
_SHOWN = "<secret>"


@dataclass(slots=True)
class StandIns:
    """Tables of a configuration whose secrets are replaced where they are missing.

    Attributes:
        environ: of the process; stand-ins are added.
        missing: what is replaced: its place, and why it is not to be had.
    """

    environ: dict[str, str]
    missing: list[tuple[str, str]] = field(default_factory=list)

    def lent(self, value: object, place: str, key: str = "") -> object:
        """Return what stands at a place, with stand-ins for what is missing in it."""
        if isinstance(value, Mapping):
            return {
                name: self.lent(part, f"{place}.{name}", name)
                for name, part in value.items()
                if name not in _FOR_TLS
            }
        if isinstance(value, list):
            return [
                self.lent(part, f"{place}[{index}]", key)
                for index, part in enumerate(value)
            ]
        return self._lent(value, place, key) if isinstance(value, str) else value

    def _lent(self, reference: str, place: str, key: str) -> str:
        secret = Secret(reference, self.environ)
        if secret.is_literal:
            return reference
        try:
            secret.reveal()
        except ValueError as error:
            self.missing.append((place, str(error)))
            variable = f"{_VARIABLE}{key}"
            self.environ[variable] = _BY_KEY.get(key, _ANY_SECRET)
            return f"env:{variable}"
        return reference


def hidden(line: str) -> str:
    """Return a line without the stand-in for an address."""
    return line.replace(f"https://{_HOST}", _SHOWN).replace(_HOST, _SHOWN)

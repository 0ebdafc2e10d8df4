"""Placeholders for secrets that cannot be read here.

A person at a shell, or a build server, cannot read the secrets of the service. A dry
run (``sebridge render``) works with placeholders in their place.
"""

from collections.abc import Mapping

from msgspec import Struct, field

from bridge.foundation.values import Secret

_HOST = "unknown.invalid"
_VARIABLE = "a stand-in for "  # with blanks: no real environment variable has them
_ANY_SECRET = f"whsec_{'A' * 32}"  # valid for every key that takes a secret
_BY_KEY = {
    "connection_string": (
        f"Endpoint=sb://{_HOST};SharedAccessKeyName=none;SharedAccessKey=none"
    ),
    "http_proxy": f"https://{_HOST}",
    "proxy": f"https://{_HOST}",
    "url": f"https://{_HOST}",
    "webhook_url": f"https://{_HOST}",
}
# Files that are needed only for a connection, and that only the service may read.
_FOR_TLS = frozenset({"ca_file", "client_certificate", "client_key"})
_SHOWN = "<secret>"


class StandIns(Struct):
    """Replaces the missing secrets in tables of a configuration.

    Attributes:
        environ: the environment of the process; the placeholders are added to it.
        missing: the place of each replaced secret, and why it cannot be read.
    """

    environ: dict[str, str]
    missing: list[tuple[str, str]] = field(default_factory=list)

    def replaced(self, value: object, place: str, key: str = "") -> object:
        """Return a value of the configuration with its missing secrets replaced."""
        if isinstance(value, Mapping):
            return {
                name: self.replaced(part, f"{place}.{name}", name)
                for name, part in value.items()
                if name not in _FOR_TLS
            }
        if isinstance(value, list):
            return [
                self.replaced(part, f"{place}[{index}]", key)
                for index, part in enumerate(value)
            ]
        return self._replaced(value, place, key) if isinstance(value, str) else value

    def _replaced(self, reference: str, place: str, key: str) -> str:
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
    """Return a line with the placeholder of an address replaced by ``<secret>``."""
    return line.replace(f"https://{_HOST}", _SHOWN).replace(_HOST, _SHOWN)

"""The only list of the kinds of sinks.

A package is loaded when its sink is first used: an unused one costs no memory.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module

from bridge.sinks.base import SinkConfig

_CLASSES = {
    "command": "CommandSinkConfig",
    "email": "EmailSinkConfig",
    "file": "FileSinkConfig",
    "servicebus": "ServiceBusSinkConfig",
    "slack": "SlackSinkConfig",
    "syslog": "SyslogSinkConfig",
    "webhook": "WebhookSinkConfig",
}


class _SinkTypes(Mapping[str, type[SinkConfig]]):
    """The ``SinkConfig`` classes by ``type``, which is also the name of the package."""

    def __getitem__(self, kind: str) -> type[SinkConfig]:
        name = _CLASSES[kind]
        module = import_module(f"{__package__}.{kind}.sink")
        found: type[SinkConfig] = getattr(module, name)
        return found

    def __contains__(self, kind: object) -> bool:
        return kind in _CLASSES

    def __iter__(self) -> Iterator[str]:
        return iter(_CLASSES)

    def __len__(self) -> int:
        return len(_CLASSES)


SINK_TYPES: Mapping[str, type[SinkConfig]] = _SinkTypes()

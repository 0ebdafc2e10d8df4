"""Which sinks there are: the only list of them.

Each is loaded when it is asked for: what nobody has configured costs no memory.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module

from bridge.sinks.base import SinkConfig

_CLASSES = {
    "command": "CommandSinkConfig",
    "file": "FileSinkConfig",
    "servicebus": "ServiceBusSinkConfig",
    "slack": "SlackSinkConfig",
    "syslog": "SyslogSinkConfig",
    "webhook": "WebhookSinkConfig",
}


class _SinkTypes(Mapping[str, type[SinkConfig]]):
    """The classes of configurations by ``type``, which names their package as well."""

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

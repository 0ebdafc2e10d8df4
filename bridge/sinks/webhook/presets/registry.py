"""The only list of the presets.

Each preset is the ``PRESET`` of a module with its name. The module is loaded when the
preset is first used: an unused preset costs no memory.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Literal, get_args

from bridge.sinks.webhook.presets.preset import Preset

PresetName = Literal[
    "alertmanager",
    "azure-function",
    "datadog",
    "elastic",
    "eventgrid",
    "eventhubs",
    "grafana-irm",
    "incident-io",
    "jira-service-management",
    "pagerduty",
    "sentinel",
    "servicenow-change",
    "servicenow-event",
    "splunk-hec",
    "standard-webhooks",
    "teams",
]


class _Presets(Mapping[PresetName, Preset]):
    """The presets by name."""

    def __getitem__(self, name: PresetName) -> Preset:
        module = import_module(f"{__package__}.{name.replace('-', '_')}")
        found: Preset = module.PRESET
        return found

    def __iter__(self) -> Iterator[PresetName]:
        return iter(get_args(PresetName))

    def __len__(self) -> int:
        return len(get_args(PresetName))


PRESETS: Mapping[PresetName, Preset] = _Presets()

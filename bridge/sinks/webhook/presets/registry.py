"""What is known of each preset. Loaded by whoever configures one."""

from collections.abc import Mapping

from bridge.sinks.webhook.auth import AuthDefaults
from bridge.sinks.webhook.content_mode import render_batch, render_structured
from bridge.sinks.webhook.presets import (
    elastic,
    eventhubs,
    sentinel,
    splunk,
    standard_webhooks,
    teams,
)
from bridge.sinks.webhook.presets.preset import (
    CLOUDEVENTS,
    OWN_BODY,
    Preset,
    PresetName,
)

PRESETS: Mapping[PresetName, Preset] = {
    "splunk-hec": Preset(
        render=splunk.render,
        judge=splunk.judge,
        auth=AuthDefaults(type="bearer", scheme="Splunk"),
        takes_gzip=True,
    ),
    "elastic": Preset(
        render=elastic.render,
        judge=elastic.judge,
        auth=AuthDefaults(type="bearer", scheme="ApiKey"),
        is_open=True,  # a cluster without security, or behind a proxy that has it
        takes_gzip=True,
    ),
    "sentinel": Preset(
        render=sentinel.render,
        auth=AuthDefaults(type="entra", scope=sentinel.SCOPE, is_implied=True),
        takes_gzip=True,
    ),
    "eventgrid": Preset(
        render=render_batch,
        modes=CLOUDEVENTS - {"array"},
        auth=AuthDefaults(
            type="header",
            name="aeg-sas-key",
            scope="https://eventgrid.azure.net/.default",
        ),
    ),
    "eventhubs": Preset(
        render=render_structured,
        headers=eventhubs.partition,
        modes=OWN_BODY | {"structured"},
        auth=AuthDefaults(type="entra", scope=eventhubs.SCOPE, is_implied=True),
    ),
    "azure-function": Preset(
        render=render_structured,
        modes=CLOUDEVENTS,
        auth=AuthDefaults(type="header", name="x-functions-key"),
        is_open=True,  # authLevel "anonymous", or a code in the URL
    ),
    "standard-webhooks": Preset(
        render=standard_webhooks.render,
        modes=CLOUDEVENTS,
        is_open=True,
        is_signed=True,
    ),
    "teams": Preset(
        render=teams.render,
        is_open=True,  # the signature stands in the URL
    ),
}

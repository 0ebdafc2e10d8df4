"""Azure Event Grid: a custom topic that takes CloudEvents.

Source: https://learn.microsoft.com/azure/event-grid/post-to-custom-topic
"""

from bridge.sinks.webhook.auth import AuthDefaults
from bridge.sinks.webhook.presets.preset import CLOUDEVENTS, MANY, Preset, render_batch

PRESET = Preset(
    gets="a batch of one CloudEvent; also `structured` or `binary`",
    needs='`auth.value`, the key; or `auth.type = "entra"`',
    render=render_batch,
    many=MANY["batch"],  # Event Grid accepts or refuses a batch as a whole
    modes=CLOUDEVENTS - {"array"},
    auth=AuthDefaults(
        type="header",
        name="aeg-sas-key",
        scope="https://eventgrid.azure.net/.default",
    ),
)

"""Azure Functions: a function with an HTTP trigger.

Source: https://learn.microsoft.com/azure/azure-functions/function-keys-how-to
"""

from bridge.sinks.webhook.auth import AuthDefaults
from bridge.sinks.webhook.presets.preset import CLOUDEVENTS, Preset, render_structured

PRESET = Preset(
    gets="the CloudEvent, structured; also any other mode",
    needs="`auth.value`, unless the function is anonymous",
    render=render_structured,
    modes=CLOUDEVENTS,
    auth=AuthDefaults(type="header", name="x-functions-key"),
    is_open=True,  # authLevel "anonymous", or a code in the URL
)

"""The configurations of what the pictures show, a card's page, and its event."""

from typing import Final

SLACK = """
[imds]
endpoint = "{imds}"
poll_interval = "250ms"

[state]
path = "{state}"

[http]
listen = ""

[[sinks]]
name = "ops"
type = "slack"
token = "env:SLACK_BOT_TOKEN"
channel = "ops"
api_url = "{api}"
buttons = true
button_secret = "env:BUTTON_SECRET"

[approvals]
connection_string = "{bus}"
queue = "vm-approvals"
"""
PAGE = """
[imds]
endpoint = "{imds}"

[state]
path = "{state}"

[http]
listen = "{listen}"

[[sinks]]
name = "bus"
type = "servicebus"
connection_string = "{bus}"
topic = "scheduled-events"

[[sinks]]
name = "siem"
type = "webhook"
url = "http://127.0.0.1:9/ingest"

[approvals]
connection_string = "{bus}"
queue = "vm-approvals"
"""
ALERTS = """
[imds]
endpoint = "{imds}"
poll_interval = "1s"

[state]
path = "{state}"

[http]
listen = "{listen}"

[[sinks]]
name = "alertmanager"
type = "webhook"
preset = "alertmanager"
url = "{alertmanager}/api/v2/alerts"
"""
TEAMS = """
[identity]
vm_name = "web-1"

[state]
path = "{state}"

[[sinks]]
name = "teams"
type = "webhook"
preset = "teams"
url = "https://teams.example/workflow"
"""
EMAIL = """
[identity]
vm_name = "web-1"

[state]
path = "{state}"

[[sinks]]
name = "mail"
type = "email"
host = "localhost"
security = "none"
sender = "sebridge@contoso.com"
recipients = ["ops@contoso.com"]
"""
CARD = """<!doctype html><meta charset="utf-8"><script src="{library}"></script>
<style>body {{ background: #f5f5f5; padding: 24px; font: 14px "Segoe UI", Lato }}
#card {{ background: #fff; border-radius: 6px; box-shadow: 0 1px 4px #0003 }}
</style><div id="card"></div><script>
const card = new AdaptiveCards.AdaptiveCard();
card.hostConfig = new AdaptiveCards.HostConfig({{ fontFamily: "Segoe UI, Lato" }});
card.parse({card});
document.getElementById("card").append(card.render());
</script>"""
REBOOT_OF_IMDS: Final = {
    "EventId": "85144A68-46D5-4BA5-9DA6-38EE8DDB9061",
    "EventStatus": "Scheduled",
    "EventType": "Reboot",
    "ResourceType": "VirtualMachine",
    "Resources": ["web-1"],
    "NotBefore": "Mon, 07 Dec 2026 14:03:00 GMT",
    "Description": "Virtual machine is going to be restarted as requested by"
    " authorized user.",
    "EventSource": "User",
    "DurationInSeconds": -1,
}

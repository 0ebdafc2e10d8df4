"""The configurations of the fleet demo, and how it starts its processes."""

import os
import sys

# The same ids as in the messages of the simulated Event Grid.
RESOURCE = (
    "/subscriptions/00001111-aaaa-2222-bbbb-3333cccc4444/resourceGroups/simulated"
    "/providers/Microsoft.Compute/virtualMachines/{name}"
)
FORWARDER = """\
# Written by `sebridge demo --fleet`: a whole configuration of a forwarder.
[imds]
endpoint = "{imds}"
poll_interval = "1s"

[identity]
vm_name = "{name}"
vm_id = "00000000-0000-0000-0000-{number}"
resource_id = "{resource}"
location = "westeurope"

[state]
path = "{state}"

[http]
listen = ""

[events]
heartbeat = "2s"

[[sinks]]
name = "bus"
type = "servicebus"
connection_string = "file:{bus}"
topic = "scheduled-events"

[approvals]
connection_string = "file:{bus}"
queue = "vm-approvals-sessions"
sessions = ["{{vm_id}}", "{prefix}"]
"""
HUB = """\
# Written by `sebridge demo --fleet`: a whole configuration of a hub.
[hub]
listen = "127.0.0.1:0"
store = "sqlite:{store}"

[[hub.sources]]
name = "bridges"
type = "bridges"
connection_string = "file:{bus}"
topic = "scheduled-events"
subscription = "consumer"
[hub.sources.approvals]
entities = ["vm-approvals*"]

[[hub.sources]]
name = "azure"
type = "azure"
connection_string = "file:{bus}"
queue = "azure-events"

[hub.arm]
endpoint = "{arm}"
credential = "none"

[hub.access]
approvers = ["local"]
"""


def program() -> list[str]:
    """Return the command that starts this program."""
    return [sys.executable, "-m", "bridge"]


def environ_of() -> dict[str, str]:
    """Return the environment of new processes, without the bridge's settings."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SEBRIDGE_")}
    return {**kept, "PYTHONUNBUFFERED": "1"}

"""What the demo of a fleet writes and starts: configurations and commands."""

import os
import sys

# As Event Grid's simulator names the machines.
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
    """Return how to call this program."""
    return [sys.executable, "-m", "bridge"]


def environ_of() -> dict[str, str]:
    """Return the environment of its processes: without settings of this one."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SEBRIDGE_")}
    return {**kept, "PYTHONUNBUFFERED": "1"}

"""The text that the builder writes, as TOML reads it."""

import tomllib
from pathlib import Path

from tests.support.configurations import approvals, command, config_text, webhook


def test_text_has_what_was_named_and_can_be_continued() -> None:
    text = config_text(
        webhook("http://a/", headers={"x-team": 'the "infra"'}),
        command(Path("/bin/true"), "-v", timeout=5),
        imds="http://b",
        state=Path("/s/state.db"),
        shutdown_grace="2s",
        approvals=approvals("Endpoint=sb://c", sessions=["{vm_id}"]),
    )

    assert tomllib.loads(f"{text}rules = []\n") == {
        "shutdown_grace": "2s",
        "imds": {"endpoint": "http://b", "poll_interval": "250ms"},
        "state": {"path": "/s/state.db"},
        "http": {"listen": ""},
        "sinks": [
            {
                "name": "siem",
                "type": "webhook",
                "url": "http://a/",
                "headers": {"x-team": 'the "infra"'},
            },
            {
                "name": "drain",
                "type": "command",
                "command": ["/bin/true", "-v"],
                "timeout": 5,
            },
        ],
        "approvals": {
            "connection_string": "Endpoint=sb://c",
            "queue": "vm-approvals",
            "sessions": ["{vm_id}"],
            "rules": [],
        },
    }

"""Holds coverage to what is promised: reads the data that ``pytest --cov`` left.

Branches and lines of the pure rooms and the workers: all of them. Of the whole: 90 %.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

WHOLLY_COVERED = (
    "bridge/approvals/autopilot.py",
    "bridge/approvals/desk.py",
    "bridge/approvals/envelope.py",
    "bridge/approvals/handling.py",
    "bridge/approvals/listener.py",
    "bridge/approvals/message.py",
    "bridge/approvals/policy.py",
    "bridge/approvals/pursuit.py",
    "bridge/approvals/rules.py",
    "bridge/checkpoint.py",
    "bridge/cloudevent.py",
    "bridge/events.py",
    "bridge/fitting.py",
    "bridge/hashing.py",
    "bridge/identity.py",
    "bridge/imds/document.py",
    "bridge/notify.py",
    "bridge/overview.py",
    "bridge/pace.py",
    "bridge/page.py",
    "bridge/plain.py",
    "bridge/poller.py",
    "bridge/relay.py",
    "bridge/retry.py",
    "bridge/routing.py",
    "bridge/samples.py",
    "bridge/sinks/cef.py",
    "bridge/sinks/slack_blocks.py",
    "bridge/sinks/slack_buttons.py",
    "bridge/sinks/slack_card.py",
    "bridge/sinks/slack_text.py",
    "bridge/sinks/syslog_format.py",
    "bridge/transitions.py",
    "bridge/upkeep.py",
    "bridge/vitals.py",
    "bridge/webhooks/content.py",
    "bridge/webhooks/kinds.py",
    "bridge/webhooks/presets/elastic.py",
    "bridge/webhooks/presets/eventhubs.py",
    "bridge/webhooks/presets/facts.py",
    "bridge/webhooks/presets/sentinel.py",
    "bridge/webhooks/presets/splunk.py",
    "bridge/webhooks/presets/standard.py",
    "bridge/webhooks/presets/teams.py",
    "bridge/webhooks/shape.py",
    "bridge/webhooks/template.py",
    "bridge/webhooks/verdict.py",
    "bridge/workers.py",
)
WHOLE = 90.0


def report() -> dict[str, dict[str, float]]:
    """Return the summary of each file, and of the whole under ``""``."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "coverage.json"
        command = [sys.executable, "-m", "coverage", "json", "-q", "-o", str(path)]
        subprocess.run(command, check=True)  # noqa: S603 - our own arguments
        whole = json.loads(path.read_text())
    files = {name: part["summary"] for name, part in whole["files"].items()}
    return {"": whole["totals"], **files}


def main() -> int:
    """Print what falls short; returns the exit code."""
    found = report()
    short = [
        f"{name}: {found[name]['percent_covered']:.1f} %, wanted 100 %"
        if name in found
        else f"{name}: never imported"
        for name in WHOLLY_COVERED
        if name not in found or found[name]["percent_covered"] < 100
    ]
    if found[""]["percent_covered"] < WHOLE:
        short.append(f"the whole: below {WHOLE} %")
    sys.stdout.write(f"covered: {found['']['percent_covered']:.1f} % of the whole\n")
    sys.stdout.writelines(f"{line}\n" for line in short)
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())

"""``python .ci/audit.py SBOM``: is anything in it yanked, or known to be vulnerable?

Run with a Python that has pip-audit. Whether a release was yanked is asked of the index
that pip uses. Known vulnerabilities are asked of PyPI, else of OSV; where neither is
there, that is said, and is no failure: the index may be a mirror on a closed network.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

OWN = "scheduled-events-bridge"
AUDIT = ("-m", "pip_audit", "--disable-pip", "--no-deps", "--progress-spinner=off")
SERVICES = ("pypi", "osv")


def main() -> int:
    """Ask about everything but our own package; 1 if anything is wrong."""
    found = json.loads(Path(sys.argv[1]).read_text())["components"]
    pins = sorted(f"{c['name']}=={c['version']}" for c in found if c["name"] != OWN)
    if not pins:
        return said(f"FAILED: {sys.argv[1]} names no component")
    if names := yanked(pins):
        return said(f"FAILED: yanked from the index: {', '.join(names)}")
    said(f"none of {len(pins)} releases was yanked")
    for service in SERVICES:
        if audited(pins[:1], service) is not None:
            return told(audited(pins, service), service)
    said("SKIPPED: known vulnerabilities: neither PyPI's nor OSV's service is there")
    return 0


def yanked(pins: list[str]) -> list[str]:
    """Return which of these releases the index has withdrawn."""
    command = ("-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps")
    report = run(*command, "--quiet", "--report=-", *pins)
    report.check_returncode()
    installs = json.loads(report.stdout)["install"]
    return [str(one["metadata"]["name"]) for one in installs if one["is_yanked"]]


def audited(pins: list[str], service: str) -> list[dict[str, Any]] | None:
    """Return what a service knows of each release; None if it is not there."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(pins))
        file.flush()
        report = run(*AUDIT, "-r", file.name, "-f", "json", "-s", service)
    try:
        found: list[dict[str, Any]] = json.loads(report.stdout)["dependencies"]
    except ValueError:
        return None
    return None if all("skip_reason" in one for one in found) else found


def told(found: list[dict[str, Any]] | None, service: str) -> int:
    """Print what is known; 1 if anything is vulnerable."""
    if found is None:
        return said(f"FAILED: {service} answered once and then no more")
    for one in found:
        if "skip_reason" in one:
            said(f"SKIPPED: {one['name']}: {one['skip_reason']}")
        for fault in one.get("vulns", ()):
            fixed = ", ".join(fault["fix_versions"]) or "nowhere"
            said(f"FAILED: {one['name']} {one['version']}: {fault['id']}: {fixed}")
    said(f"{service} was asked about {len(found)} releases")
    return int(any(one.get("vulns") for one in found))


def said(text: str) -> int:
    """Print a line; 1, for what ends with it."""
    sys.stdout.write(f"{text}\n")
    return 1


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a module of this Python."""
    return subprocess.run(  # noqa: S603  fixed words, and names from our own SBOM
        [sys.executable, *arguments], capture_output=True, text=True, check=False
    )


if __name__ == "__main__":
    raise SystemExit(main())

"""What the README claims and no other test holds."""

import json
import re
from pathlib import Path

import click

from bridge.cli.main import main
from bridge.events.build import numbered
from bridge.foundation.hashing import hash32

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_id_vector_is_what_the_code_makes_of_it() -> None:
    cause = re.search(r"printf '%s' '(\[.*?\])' \| sha256sum", README)
    told = re.search(r"cut -c1-32\n([0-9a-f]{32})\n", README)
    assert cause
    assert told

    parsed = json.loads(cause[1])

    assert numbered(parsed, 0) == told[1] == hash32(parsed)


def test_every_command_of_the_program_is_named() -> None:
    for command in main.list_commands(click.Context(main)):
        assert f"sebridge {command}" in README


def test_every_scenario_is_named() -> None:
    folder = ROOT / "bridge" / "simulator" / "scenarios"
    names = [p.stem for p in folder.glob("*.json") if "documents-" not in p.stem]

    assert len(names) == 8
    assert all(f"`{name}`" in README for name in names)


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert target.startswith("http") or (ROOT / target).exists(), target


def test_every_picture_is_shown() -> None:
    for picture in (ROOT / ".github").glob("*.*g"):
        assert f"](.github/{picture.name})" in README, picture.name


def test_claims_of_security_are_held_by_tests_that_exist() -> None:
    section = README.split("## Security")[1].split("\n## ")[0]
    named = set(re.findall(r"`(test_\w+)`", section))
    written = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))

    assert len(named) > 15
    assert [name for name in named if f"def {name}(" not in written] == []

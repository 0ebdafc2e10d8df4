"""What other files say of sinks and presets is derived, or missed if absent."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from bridge.sinks.registry import SINK_TYPES
from tests.docs.pages import ROOT, pages, section
from tests.sinks.derived import COMMAND, derived, smallest

SINKS = ROOT / "bridge" / "sinks"


def test_pages_hold_what_is_derived() -> None:
    stale = [str(p) for p, text in derived() if p.read_text(encoding="utf-8") != text]

    assert stale == [], f"run {COMMAND}, and look at what it has written"


@pytest.mark.parametrize("kind", SINK_TYPES)
def test_smallest_configuration_is_that_of_the_type(kind: str) -> None:
    (table,) = tomllib.loads(smallest(kind))["sinks"]

    assert table["type"] == kind


@pytest.mark.parametrize("kind", SINK_TYPES)
def test_readme_and_changelog_name_the_sink(kind: str) -> None:
    text = section("README.md", "## What it can do")

    link = f"(config/sinks/{kind}.md)"
    assert link in text, f'name it in README.md, "What it can do": [{kind}]{link}'
    assert f"`{kind}`" in pages()["CHANGELOG.md"], f"add a line with `{kind}` to it"


def does_io(path: Path, forbidden: set[str]) -> bool:
    """Whether a module waits, reads files or secrets, or imports what may do so."""
    text = path.read_text(encoding="utf-8")
    imported = set[str]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            imported |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported.add(node.module.partition(".")[0])
    return bool(imported & forbidden or re.search(r"\basync |\breveal|\bPath\b", text))


def test_pure_modules_of_sinks_are_under_contract() -> None:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    contract = tools["importlinter"]["contracts"][-1]
    forbidden = set(contract["forbidden_modules"])
    paths = (p for p in SINKS.glob("*/**/*.py") if p.name != "__init__.py")
    pure = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in paths
        if not does_io(path, forbidden)
    }

    named = tuple(f"{name}." for name in contract["source_modules"])
    missing = sorted(name for name in pure if not f"{name}.".startswith(named))
    assert missing == [], "name them in source_modules of that contract"

"""What other files say of sinks and presets is derived, or missed if absent."""

import re
import tomllib

import pytest

from bridge.sinks.registry import SINK_TYPES
from tests.docs.pages import ROOT, pages, section
from tests.sinks.derived import (
    COMMAND,
    EXAMPLE,
    SINKS_PAGE,
    derived,
    does_io,
    impure_imports,
    pure_modules,
    smallest,
    with_every_sink,
    with_rows,
)


def test_every_package_of_a_sink_is_registered() -> None:
    folders = (ROOT / "bridge" / "sinks").glob("*/sink.py")

    missing = {path.parent.name for path in folders} - set(SINK_TYPES)
    assert missing == set(), "name them in bridge/sinks/registry.py"


def test_pages_hold_what_is_derived() -> None:
    stale = [str(p) for p, text in derived() if p.read_text(encoding="utf-8") != text]

    assert stale == [], f"run {COMMAND}, and look at what it has written"


@pytest.mark.parametrize("kind", SINK_TYPES)
def test_smallest_configuration_is_that_of_the_type(kind: str) -> None:
    (table,) = tomllib.loads(smallest(kind))["sinks"]

    assert table["type"] == kind


@pytest.mark.parametrize("kind", SINK_TYPES)
def test_readme_and_changelog_name_the_sink(kind: str) -> None:
    text = section("README.md", "## Pages")

    link = f"(config/sinks/{kind}.md)"
    assert link in text, f'name it in README.md, "Pages": [{kind}]{link}'
    assert f"`{kind}`" in pages()["CHANGELOG.md"], f"add a line with `{kind}` to it"


@pytest.mark.parametrize(
    "text",
    [
        "import asyncio.locks",
        "from os import path",
        "async def deliver(event): ...",
        "url = self.url.reveal()",
    ],
)
def test_module_that_does_io_is_not_taken_for_a_pure_one(text: str) -> None:
    assert does_io(text, impure_imports())


def test_pure_modules_of_sinks_are_found() -> None:
    found = set(pure_modules())

    assert {"bridge.sinks.email.message", "bridge.sinks.webhook.body"} <= found
    assert not any(name.endswith(".sink") for name in found)


@pytest.mark.parametrize("kind", SINK_TYPES)
def test_row_of_a_new_sink_is_written_and_the_others_are_left(kind: str) -> None:
    page = SINKS_PAGE.read_text(encoding="utf-8")
    (own,) = re.findall(rf"(?m)^\| \[`{kind}`\].*\n", page)
    before = page.replace(own, "")
    after = with_rows(before)

    (written,) = re.findall(rf"(?m)^\| \[`{kind}`\].*\n", after)
    assert after.replace(written, "") == before


def tables_of(example: str) -> list[str]:
    """Return the tables of sinks, and what is before and behind them, as texts."""
    return re.split(r"(?m)^(?=\[\[sinks\]\]|\[approvals\] )", example)


@pytest.mark.parametrize("kind", SINK_TYPES)
def test_table_of_a_new_sink_is_written_and_the_others_are_left(kind: str) -> None:
    example = tables_of(EXAMPLE.read_text(encoding="utf-8"))
    others = [part for part in example if f'\ntype = "{kind}"' not in part]
    after = tables_of(with_every_sink("".join(others)))

    (own,) = (part for part in after if f'\ntype = "{kind}"' in part)
    assert [part for part in after if part != own] == others
    (table,) = tomllib.loads(re.sub(r"(?m)^# (?=\w+ = )", "", own))["sinks"]
    assert table.keys() | {"when", "retry"} == {*SINK_TYPES[kind].__struct_fields__}

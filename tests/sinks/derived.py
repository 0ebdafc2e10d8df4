"""Writes what is derived from the sinks and the presets.

``python -m tests.sinks.derived`` writes

- the golden bodies of the presets, and their table in ``config/sinks/webhook.md``;
- the schema of the configuration;
- the packages of ``sinks`` in the map, ``bridge/README.md``;
- the pure modules of sinks in the contract that keeps them pure, ``pyproject.toml``;
- for a new type of sink: its row in ``config/sinks/README.md``, and its keys in
  ``config/bridge.example.toml``. What already stands there is left as it is, so the
  words may be improved by hand.
"""

import ast
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bridge.configuration import json_schema
from bridge.sinks.registry import SINK_TYPES
from tests.sinks.preset_ways import NAMES, ROOT, sent, with_table
from tests.sinks.preset_ways import PAGE as WEBHOOK_PAGE

MAP = ROOT / "bridge" / "README.md"
PAGES = ROOT / "config" / "sinks"
SINKS_PAGE = PAGES / "README.md"
EXAMPLE = ROOT / "config" / "bridge.example.toml"
PROJECT = ROOT / "pyproject.toml"
COMMAND = "python -m tests.sinks.derived"

_HEAD = "| `type` | where events go |\n|---|---|\n"  # of the table of all sinks
_COMMON = {"name", "type", "when", "retry"}  # they stand at one sink for all
_COMMENT_AT = 40  # the column of the comments in the example


def page_of(kind: str) -> str:
    """Return the page of a sink."""
    path = PAGES / f"{kind}.md"
    assert path.exists(), f"write config/sinks/{kind}.md, with the head of the others"
    return path.read_text(encoding="utf-8")


def smallest(kind: str) -> str:
    """Return the smallest configuration of a sink: the first TOML of its page."""
    found = re.search(r"```toml\n(.*?)```", page_of(kind), re.DOTALL)
    assert found, f"config/sinks/{kind}.md has no smallest configuration in TOML"
    return found[1]


def impure_imports() -> set[str]:
    """Return what a pure module does not import, by the contract."""
    return set(_contract(PROJECT.read_text(encoding="utf-8"))["forbidden_modules"])


def _contract(project: str) -> dict[str, list[str]]:
    contracts = tomllib.loads(project)["tool"]["importlinter"]["contracts"]
    (found,) = (one for one in contracts if one["name"].startswith("What is pure"))
    return dict(found)


def does_io(text: str, forbidden: set[str]) -> bool:
    """Whether a module waits, reads files or secrets, or imports what may do so."""
    imported = set[str]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            imported |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported.add(node.module.partition(".")[0])
    return bool(imported & forbidden or re.search(r"\basync |\breveal|\bPath\b", text))


def pure_modules() -> Iterator[str]:
    """Yield the modules of the sinks' packages that do no I/O."""
    forbidden = impure_imports()
    for path in sorted((ROOT / "bridge" / "sinks").glob("*/**/*.py")):
        is_empty = path.name == "__init__.py"
        if not is_empty and not does_io(path.read_text(encoding="utf-8"), forbidden):
            yield ".".join(path.relative_to(ROOT).with_suffix("").parts)


def with_pure_modules(project: str) -> str:
    """Return pyproject.toml with the pure modules of sinks in their contract."""
    named = tuple(f"{name}." for name in _contract(project)["source_modules"])
    new = [name for name in pure_modules() if not f"{name}.".startswith(named)]
    words = "".join(f' "{name}",' for name in new)  # the contracts fit on a page
    before, begin, after = project.rpartition("source_modules = [\n")
    names, end, rest = after.partition("]\n")
    return before + begin + names.rstrip("\n") + words + "\n" + end + rest


def with_map_row(text: str) -> str:
    """Return the map with all packages of ``sinks`` in its row."""
    names = " ".join(sorted(SINK_TYPES))
    return re.sub(r"(?m)^(\| `sinks` \|.* · )[^|]* \|$", rf"\g<1>{names} |", text)


def with_rows(page: str) -> str:
    """Return the page of all sinks with a row for each type, and no other."""
    before, _, after = page.partition(_HEAD)
    rows, blank, rest = after.partition("\n\n")
    there = dict(re.findall(r"(?m)^(\| \[`(\w+)`\].*)$", rows))
    kept = [row for row, kind in there.items() if kind in SINK_TYPES]
    new = [_row(kind) for kind in SINK_TYPES if kind not in there.values()]
    return before + _HEAD + "\n".join([*kept, *new]) + blank + rest


def _row(kind: str) -> str:
    text = " ".join(page_of(kind).split())
    found = re.search(r"What it is: (.+?)\.(?: |$)", text)
    assert found, f'config/sinks/{kind}.md does not say "What it is: …"'
    return f"| [`{kind}`]({kind}.md) | {found[1]} |"


def with_every_sink(example: str) -> str:
    """Return the example with a table for each type of sink."""
    there = {table["type"] for table in tomllib.loads(example)["sinks"]}
    new = "".join(f"{_table(kind)}\n" for kind in SINK_TYPES if kind not in there)
    before, begin, after = example.partition("[approvals] ")
    return before + new + begin + after


def _table(kind: str) -> str:
    """Return the keys of a sink: those of its page, then all others."""
    kinds = json_schema.config()["properties"]["sinks"]["items"]["anyOf"]
    (schema,) = (k for k in kinds if k["properties"]["type"]["const"] == kind)
    needed = re.split(r"\n(?=\n|\[sinks\.)", smallest(kind))[0]
    given = {match[1] for match in re.finditer(r"(?m)^(?:# )?(\w+) = ", needed)}
    others = (
        _line(key, about)
        for key, about in schema["properties"].items()
        if key not in given | _COMMON
    )
    return "\n".join([needed.rstrip("\n"), *others, ""])


def _line(key: str, about: dict[str, Any]) -> str:
    use = about["examples"][0]
    if "default" in about:
        value = about["default"]
        is_duration = isinstance(value, float) and isinstance(use, str)
        line = f"{key} = {_toml(f'{value:g}s' if is_duration else value)}"
    else:
        line = f"# {key} = {_toml(use)}"
    text = about["description"].partition(". ")[0]
    return f"{line:<{_COMMENT_AT}}# {text[0].lower()}{text[1:]}"


def _toml(value: object) -> str:
    if isinstance(value, dict):
        pairs = ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items())
        return f"{{ {pairs} }}"
    return json.dumps(value, ensure_ascii=False)


def golden() -> Iterator[tuple[Path, str]]:
    """Yield the files of the golden bodies, and what is to be in them."""
    from tests.sinks.test_command_views import command_event  # noqa: PLC0415 - imports pytest
    from tests.sinks.test_webhook_presets import golden_event  # noqa: PLC0415 - likewise

    for folder, event in (
        ("presets", golden_event()),
        ("presets-command", command_event()),
    ):
        for name in NAMES:
            text = json.dumps(sent(name, event), indent=2, ensure_ascii=False)
            yield ROOT / "tests" / "data" / folder / f"{name}.json", f"{text}\n"


def derived() -> Iterator[tuple[Path, str]]:
    """Yield each page that holds something derived, and how it is to be."""
    for path, make in (
        (WEBHOOK_PAGE, with_table),
        (SINKS_PAGE, with_rows),
        (EXAMPLE, with_every_sink),
        (MAP, with_map_row),
        (PROJECT, with_pure_modules),
    ):
        yield path, make(path.read_text(encoding="utf-8"))
    yield ROOT / "config" / "config.schema.json", json_schema.text("config")


def _write() -> None:
    for path, text in (*golden(), *derived()):
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    _write()

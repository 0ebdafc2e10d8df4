"""Statements of the pages that no other test checks."""

import json
import re
import tomllib
from pathlib import Path, PurePath
from typing import Any

import click
import jsonschema
import pytest
import trustme
from click.testing import CliRunner

from bridge.cli.main import main
from bridge.configuration.load import parse as load_tables
from bridge.events.cloudevent import hash32
from bridge.events.vocabulary import OutcomeKind
from bridge.hub.load import load as load_hub
from tests.docs.pages import (
    FOLDERS,
    ROOT,
    Block,
    all_text,
    anchors,
    blocks,
    every_block,
    keys_in,
    pages,
    prose,
    section,
)
from tests.sinks.preset_ways import WAYS

MARKS = re.compile(
    r"run|run: until ready|printed|completion|file: \S+|command: [\w-]+"
    r"|five minutes: \S+|needs: .+"
)
SINKS = {path.stem: path for path in (ROOT / "config" / "sinks").glob("[!R]*.md")}
EXAMPLES = sorted((ROOT / "config" / "examples").glob("*.toml"))
HEAD = ["Smallest configuration", "All keys", "What counts as delivered"]
TAIL = ["Permissions", "Tried against"]


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment of a machine that has all secrets of the pages."""
    folder = tmp_path_factory.mktemp("credentials")
    authority = trustme.CA()
    client = authority.issue_cert("client.example")
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    client.private_key_pem.write_to_path(str(folder / "client.key"))
    client.cert_chain_pems[0].write_to_path(str(folder / "client.pem"))
    signing = "whsec_" + "c2VjcmV0" * 4
    secrets = {
        "slack-webhook-url": "https://hooks.slack.com/services/T0/B0/X",
        "slack-bot-token": "xoxb-1",
        "button-secret": "b" * 32,
        "receiver-token": "t",
        "receiver-signing-secret": signing,
    }
    for name, secret in secrets.items():
        (folder / name).write_text(secret)
    of_presets = {k: v for way in WAYS.values() for k, v in way.environ.items()}
    # Most secrets must only exist, so one URL serves as every secret.
    others = dict.fromkeys(re.findall(r'"env:(\w+)"', all_text()), "https://x.example/")
    return {
        **others,
        **of_presets,
        "CREDENTIALS_DIRECTORY": str(folder),
        "SERVICEBUS": "Endpoint=sb://localhost;SharedAccessKeyName=a;"
        "SharedAccessKey=b;UseDevelopmentEmulator=true;",
        "SIEM_TOKEN": "t",
        "NEW_SECRET": signing,
        "OLD_SECRET": signing,
    }


def schema_of(name: str) -> Any:
    """Return a schema file; another test compares the file with the code."""
    return json.loads((ROOT / "config" / f"{name}.schema.json").read_text())


def properties(schema: object, *path: str) -> dict[str, Any]:
    """Return the properties of a part of a schema."""
    found: Any = schema
    for name in path:
        found = found["properties"][name]
        found = found.get("items", found)
    properties: dict[str, Any] = found["properties"]
    return properties


def dotted(properties: dict[str, Any]) -> set[str]:
    """Return the names of keys; keys of nested tables as ``auth.type``."""
    found = set()
    for name, value in properties.items():
        below = value.get("properties")
        found |= {f"{name}.{key}" for key in below} if below else {name}
    return found


def sink_keys() -> dict[str, set[str]]:
    """Return the keys of each type of sink."""
    kinds = schema_of("config")["properties"]["sinks"]["items"]["anyOf"]
    return {
        kind["properties"]["type"]["const"]: dotted(kind["properties"])
        for kind in kinds
    }


def test_readme_is_short() -> None:
    assert len(pages()["README.md"].splitlines()) <= 220


@pytest.mark.parametrize("page", pages())
def test_links_have_a_target(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith(("http:", "https:")):
            continue
        path, _, anchor = target.partition("#")
        found = (ROOT / page).parent / path if path else ROOT / page
        assert found.exists(), target
        if anchor:
            assert anchor in anchors(found.resolve().relative_to(ROOT).as_posix()), (
                target
            )


@pytest.mark.parametrize(
    "block", every_block("sh", "bash", "console", "powershell"), ids=str
)
def test_commands_are_run_or_say_what_they_need(block: Block) -> None:
    assert MARKS.fullmatch(block.mark), f"{block}: {block.mark or 'no mark'}"


def test_command_with_a_prompt_says_that_it_is_one() -> None:
    """No test looks for commands in a block of another language."""
    others = [block for block in every_block("", "text") if block.text[:2] == "$ "]

    assert [str(block) for block in others] == []


@pytest.mark.parametrize("page", pages())
def test_files_that_are_named_are_there(page: str) -> None:
    """What begins with a folder of the project; up to a name that stands for others."""
    for name in re.findall(r"`([^`\s]+/[^`\s]*)`", prose(page)):
        if name.split("/")[0] in {*FOLDERS, ".ci"}:
            assert (ROOT / re.split(r"[:*<{]", name)[0]).exists(), name


@pytest.mark.parametrize("block", every_block("toml"), ids=str)
def test_configurations_on_pages_are_accepted(
    block: Block, environ: dict[str, str], tmp_path: Path
) -> None:
    tables = tomllib.loads(block.text)
    if "hub" not in tables:
        load_tables(tables, file=str(block), environ=environ)
        return
    path = tmp_path / "hub.toml"
    path.write_text(block.text)
    load_hub(path, {**environ, "STORE": "postgresql://sebridge@db.example/hub"})


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_check_accepts_the_example(path: Path, environ: dict[str, str]) -> None:
    result = CliRunner().invoke(main, ["check", "-c", str(path)], env=environ)

    assert result.exit_code == 0, result.output
    assert "warning" not in result.output or path.stem == "simulator"


def test_state_of_the_simulators_example_stays_out_of_git() -> None:
    """In a clone it is written at the root, and a lock and two others beside it."""
    example = tomllib.loads((ROOT / "config/examples/simulator.toml").read_text())
    ignored = (ROOT / ".gitignore").read_text().splitlines()

    assert f"{PurePath(example['state']['path'])}*" in ignored


@pytest.mark.parametrize("block", every_block("json"), ids=str)
def test_json_is_json(block: Block) -> None:
    json.loads(block.text)


def test_every_picture_is_shown() -> None:
    for picture in (ROOT / ".github").glob("*.*g"):
        assert f".github/{picture.name})" in all_text(), picture.name


def test_every_command_of_the_program_is_named() -> None:
    for command in main.list_commands(click.Context(main)):
        assert f"sebridge {command}" in all_text(), command


def test_every_scenario_is_named() -> None:
    folder = ROOT / "bridge" / "simulator" / "scenarios"
    names = {p.stem for p in folder.glob("*.json") if "documents-" not in p.stem}

    text = section("bridge/simulator/README.md", "## Scenarios")
    assert keys_in(text) - {"--scenario"} == names
    for command in ("demo", "simulate"):
        result = CliRunner().invoke(main, [command, "--help"], terminal_width=9999)
        assert [name for name in names if name not in result.output] == []


def test_every_sink_has_a_page_with_the_same_head() -> None:
    missing = [f"config/sinks/{kind}.md" for kind in set(sink_keys()) - set(SINKS)]
    assert missing == [], "write it, with the head that the other pages have"
    assert set(SINKS) == set(sink_keys())
    for kind in SINKS:
        page = f"config/sinks/{kind}.md"
        heads = re.findall(r"(?m)^## (.+)$", prose(page))
        kept = [head for head in heads if head in {*HEAD, *TAIL}]
        assert kept == [*HEAD, *TAIL], page
        assert "\nWhat it is: " in pages()[page]


@pytest.mark.parametrize("kind", SINKS)
def test_page_of_a_sink_names_each_key_and_no_other(kind: str) -> None:
    everybody = keys_in(
        section("config/sinks/README.md", "## Keys that every sink has")
    )
    own = keys_in(section(f"config/sinks/{kind}.md", "## All keys"))

    assert own | everybody == sink_keys()[kind]
    assert own & everybody == set()


def test_page_of_approvals_names_each_key_and_no_other() -> None:
    schema = schema_of("config")
    top = keys_in(section("config/approvals.md", "## Configure"))
    rules = keys_in(section("config/approvals.md", "## Rules"))

    assert top == set(properties(schema, "approvals"))
    assert rules == set(properties(schema, "approvals", "rules"))


def test_page_of_approvals_names_each_outcome() -> None:
    named = keys_in(section("config/approvals.md", "## Outcomes"))

    assert named == {outcome.value for outcome in OutcomeKind}


def test_table_of_the_file_names_each_table() -> None:
    text = section("config/README.md", "# The configuration file")
    named = {name.strip("[]") for name in keys_in(text)}

    assert named == set(properties(schema_of("config")))


def test_every_example_is_named() -> None:
    for path in EXAMPLES:
        assert f"(examples/{path.name})" in pages()["config/README.md"]


def test_page_of_figures_names_each_measurement() -> None:
    from tests.bench.__main__ import BENCHES  # noqa: PLC0415 - half a second of loading

    text = section("tests/bench/README.md", "## Measure it yourself")

    assert keys_in(text) == set(BENCHES)


def test_annotated_event_is_valid() -> None:
    """The event fits the schema, has every field, and has the id of the id rule."""
    (block,) = every_block("jsonc")
    event = json.loads(re.sub(r"(?m)\s+//.*$", "", block.text))

    jsonschema.validate(event, schema_of("event"))
    imds = event["data"]["event"]
    cause = [imds["EventId"], "scheduled", None, imds]
    assert event["id"] == hash32(cause)


def test_id_vector_is_what_the_code_makes_of_it() -> None:
    page = pages()["config/events.md"]
    cause = re.search(r"printf '%s' '(\[.*?\])' \| sha256sum", page)
    printed = re.search(r"prints `([0-9a-f]{32})`", page)
    assert cause
    assert printed

    parsed = json.loads(cause[1])

    assert printed[1] == hash32(parsed)


def test_symptoms_name_existing_log_lines() -> None:
    table = section("infra/operate.md", "## Troubleshooting")
    cells = [row.split("|")[-2] for row in table.split("\n") if row.startswith("| ")]
    named = {name for cell in cells[1:] for name in re.findall(r"`([^`]+)`", cell)}

    assert len(named) > 10
    assert named <= keys_in(pages()["config/log-lines.md"])


def test_security_page_names_existing_tests() -> None:
    text = section("infra/security.md", "## Who can do what")
    named = set(re.findall(r"`(test_\w+)`", text))
    written = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))

    assert len(named) > 15
    assert [name for name in named if f"def {name}(" not in written] == []


def test_every_block_is_closed() -> None:
    for page, text in pages().items():
        fences = re.findall(r"(?m)^ *```", text)
        assert len(fences) == 2 * len(list(blocks(page))), page

"""The pages of the project and their code blocks, as the tests in this folder see them.

A block of commands has a mark before it, a comment that no reader sees:

    <!-- run -->              run by test_pages_run.py against the simulator
    <!-- run: until ready --> the same, stopped at its first line of output
    <!-- printed -->          its commands are run, and print what stands below them
    <!-- five minutes: … -->  followed by test_five_minutes.py
    <!-- file: NAME -->       the file that other blocks of the page use
    <!-- command: NAME -->    run by .ci/run, or by a test that asks for NAME
    <!-- completion -->       run by test_pages_run.py, for each shell
    <!-- needs: … -->         run by nobody: what it needs is not there
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[2]
FOLDERS = (".github", "bridge", "config", "infra", "tests")
PLACES = ("*.md", *(f"{folder}/**/*.md" for folder in FOLDERS))
_FENCE = re.compile(r"^ *```(.*)$")
_MARK = re.compile(r"^ *<!-- (.+) -->$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A code block.

    Attributes:
        page: relative to the root, such as ``config/try.md``.
        line: where its text begins, from 1.
        mark: what the comment before it says; empty without one.
    """

    page: str
    line: int
    language: str
    mark: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@cache
def pages() -> dict[str, str]:
    """Return the text of every page by its name."""
    found = sorted({path for place in PLACES for path in ROOT.glob(place)})
    kept = [path for path in found if "node_modules" not in path.parts]
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for path in kept
    }


@cache
def all_text() -> str:
    """Return all pages, one after the other."""
    return "\n".join(pages().values())


def blocks(page: str) -> Iterator[Block]:
    """Yield the code blocks of a page, in order."""
    lines = pages()[page].split("\n")
    begin, language = None, ""
    for number, line in enumerate(lines):
        fence = _FENCE.match(line)
        if fence is None:
            continue
        if begin is None:
            begin, language = number, fence[1]
            continue
        mark = _MARK.match(lines[begin - 1])
        yield Block(
            page=page,
            line=begin + 2,
            language=language,
            mark=mark[1] if mark else "",
            text=dedent("\n".join(lines[begin + 1 : number])) + "\n",
        )
        begin = None


def every_block(*languages: str) -> list[Block]:
    """Return all code blocks in these languages."""
    found = (block for page in pages() for block in blocks(page))
    return [block for block in found if block.language in languages]


def section(page: str, heading: str) -> str:
    """Return a page from a heading to the next one of its level or above."""
    lines = pages()[page].split("\n")
    level = len(heading) - len(heading.lstrip("#"))
    begin = lines.index(heading)
    end = re.compile(rf"#{{1,{level}}} ")
    rest = (n for n in range(begin + 1, len(lines)) if end.match(lines[n]))
    return "\n".join(lines[begin : next(rest, len(lines))])


def prose(page: str) -> str:
    """Return a page without its code blocks."""
    text = pages()[page]
    for block in blocks(page):
        text = text.replace(block.text, "")
    return re.sub(r"(?m)^ *```.*$", "", text)


def anchors(page: str) -> set[str]:
    """Return what links into a page may name, as GitHub makes it of headings."""
    heads = re.findall(r"(?m)^#{1,6} (.+)$", prose(page))
    plain = (re.sub(r"[^\w\- ]", "", head.lower()) for head in heads)
    return {head.strip().replace(" ", "-") for head in plain}


def keys_in(text: str) -> set[str]:
    """Return the names in the first column of tables: all of each cell."""
    cells = re.findall(r"(?m)^\| ((?:`[^`]+`(?:, )?)+)[^|]*\|", text)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}

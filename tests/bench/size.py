"""``python -m tests.bench.size``: lines, lines of code and files of each package.

Code is what is neither blank, nor a comment, nor a docstring.
"""

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent / "bridge"
_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def code_lines(text: str) -> int:
    """Return how many lines hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - set(_docstring_lines(ast.parse(text))))


def _docstring_lines(tree: ast.Module) -> Iterator[int]:
    """Yield the lines of all strings that stand alone."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str()), lineno=a, end_lineno=b):
                yield from range(a, (b or a) + 1)


def main() -> None:
    """Print a line for each package, and one for all but the simulator."""
    total = [0, 0, 0]
    for package in sorted(path for path in ROOT.iterdir() if path.is_dir()):
        texts = [path.read_text() for path in package.rglob("*.py")]
        if not texts:
            continue
        found = [
            sum(len(text.splitlines()) for text in texts),
            sum(map(code_lines, texts)),
            len(texts),
        ]
        if package.name != "simulator":
            total = [a + b for a, b in zip(total, found, strict=True)]
        _say(package.name, found)
    _say("all but the simulator", total)


def _say(name: str, found: list[int]) -> None:
    lines, code, files = found
    sys.stdout.write(f"{name:24}{lines:8,} lines{code:8,} of code{files:6} files\n")


if __name__ == "__main__":
    main()

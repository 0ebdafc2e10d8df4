"""config/log-lines.md names every line that is logged, with its level and fields."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEVELS = {"exception": "error", "log": "warning or error"}
ROW = re.compile(
    r"\| `([^`]+)` \| (debug|info|warning(?: or error)?|error) \| ([^|]*)\|"
)

Line = tuple[str, str, frozenset[str]]


def logged() -> Iterator[Line]:
    for path in (ROOT / "bridge").rglob("*.py"):
        if {"simulator", "demo"}.isdisjoint(path.relative_to(ROOT).parts):
            text = path.read_text(encoding="utf-8")
            if "log." in text:
                yield from logged_in(ast.parse(text))


def logged_in(module: ast.Module) -> Iterator[Line]:
    for call in ast.walk(module):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        if not isinstance(call.func.value, ast.Name) or call.func.value.id != "log":
            continue
        name = call.func.attr
        if name == "isEnabledFor":
            continue
        message = ast.literal_eval(call.args[1 if name == "log" else 0])
        extra = [one.value for one in call.keywords if one.arg == "extra"]
        fields = frozenset(field for one in extra for field in keys(one, module))
        yield message, LEVELS.get(name, name), fields


def keys(value: ast.expr, module: ast.Module) -> Iterator[str]:
    """Yield the keys of a dict: written out, a variable's, or what is returned."""
    if isinstance(value, ast.Dict):
        for key, part in zip(value.keys, value.values, strict=True):
            yield from keys(part, module) if key is None else [ast.literal_eval(key)]
        return
    name = ast.unparse(value.func if isinstance(value, ast.Call) else value)
    module = imported(name, module)
    found = [node for node in ast.walk(module) if meant(node, name)]
    assert found, f"{name}: not found where it is logged"
    for node in found:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Dict):
                yield from keys(inner, module)


def imported(name: str, module: ast.Module) -> ast.Module:
    """Return the module of `bridge` that a name is imported from, or this one."""
    for node in ast.walk(module):
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and name in (alias.name for alias in node.names)
        ):
            path = ROOT.joinpath(*node.module.split(".")).with_suffix(".py")
            return ast.parse(path.read_text(encoding="utf-8"))
    return module


def meant(node: ast.AST, name: str) -> bool:
    """Whether a node is the function, or what is assigned to the variable."""
    if isinstance(node, ast.FunctionDef):
        return node.name == name
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name


def documented() -> Iterator[Line]:
    text = (ROOT / "config" / "log-lines.md").read_text(encoding="utf-8")
    for message, level, fields in ROW.findall(text):
        yield message, level, frozenset(re.findall(r"`([^`]+)`", fields))


def test_every_log_line_is_documented_as_it_is() -> None:
    assert sorted(set(logged()), key=str) == sorted(documented(), key=str)


def test_table_is_in_order_and_names_each_line_once() -> None:
    names = [message for message, _, _ in documented()]

    assert names == sorted(set(names))

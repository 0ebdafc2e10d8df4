"""``SEBRIDGE__…`` variables, which override keys of the configuration file."""

from collections.abc import Mapping, Sequence

from bridge.foundation.sections import FromEnvironment, Reader, Section, nearest

PREFIX = "SEBRIDGE__"


def overridden(
    tables: Mapping[str, object],
    whole: type[Section],
    sink_types: Mapping[str, type[Section]],
    reader: Reader,
) -> dict[str, object]:
    """Return a copy of the tables with the values of ``SEBRIDGE__…`` variables.

    Args:
        tables: the tables of the file.
        whole: the section that the tables are converted to.
        sink_types: the section for each type of sink.
        reader: holds the environment, and records faults.
    """
    root = _copied(tables)
    sinks = sinks_by_name(root.get("sinks"))
    taken = dict[str, str]()
    for variable in sorted(reader.environ):
        if variable.upper().startswith(PREFIX):
            rest = variable.upper().removeprefix(PREFIX)
            if (other := taken.setdefault(rest, variable)) != variable:
                reader.fault(variable, f"means the same as {other}: unset one of them")
            text = FromEnvironment.of(variable, reader.environ[variable])
            if rest == "SINKS" or rest.startswith("SINKS__"):
                _override_sink(sinks, sink_types, rest, text, reader)
            else:
                _override(root, whole, rest, text, reader)
    return root


def _override_sink(
    sinks: Mapping[str, dict[str, object]],
    sink_types: Mapping[str, type[Section]],
    rest: str,
    value: FromEnvironment,
    reader: Reader,
) -> None:
    named = rest.removeprefix("SINKS").removeprefix("__")
    names = [name for name in sinks if f"{named}__".startswith(f"{name}__")]
    if not names:
        if "__" in named:
            what, known = named.partition("__")[0], [name.lower() for name in sinks]
            _unknown(value.variable, what, known, "no such sink", reader)
        else:
            _no_key(value.variable, f"{PREFIX}SINKS__<NAME>", reader)
        return
    name = max(names, key=len)  # a name may itself contain two underscores
    kind = sink_types.get(str(sinks[name].get("type")))
    if kind is None:
        return  # the missing type is reported elsewhere
    if named == name:
        _no_key(value.variable, value.variable, reader)
        return
    _override(sinks[name], kind, named.removeprefix(f"{name}__"), value, reader)


def _override(
    table: dict[str, object],
    kind: type[Section],
    rest: str,
    value: FromEnvironment,
    reader: Reader,
) -> None:
    part, is_deeper, rest = rest.partition("__")
    key, nested = part.lower(), _section_at(kind, part)
    if key == "sinks" or key not in keys_of(kind):
        _unknown(value.variable, part, list(keys_of(kind)), "no such key", reader)
    elif nested is None and is_deeper:
        what = f"unknown variable: {part} has no keys of its own to override"
        reader.fault(value.variable, what)
    elif nested is None:
        table[key] = value
    elif not is_deeper:
        _no_key(value.variable, value.variable, reader)
    elif isinstance(child := table.setdefault(key, {}), dict):
        _override(child, nested, rest, value, reader)


def _no_key(variable: str, table: str, reader: Reader) -> None:
    reader.fault(variable, f"is a table: its keys are {table}__<KEY>")


def _unknown(
    variable: str, part: str, valid: list[str], otherwise: str, reader: Reader
) -> None:
    near = nearest(part.lower(), valid)
    hint = f"did you mean {upper(near)}?" if near else otherwise
    reader.fault(variable, f"unknown variable: {part}; {hint}")


def _section_at(kind: type[Section], key: str) -> type[Section] | None:
    for field in kind.__struct_fields__:
        if field == key.lower():
            return Reader.section_type(kind, field)
    return None


def sinks_by_name(sinks: object) -> dict[str, dict[str, object]]:
    """Return the tables of sinks, keyed by their names as written in variables."""
    tables = sinks if isinstance(sinks, list) else ()
    return {
        upper(table["name"]): table
        for table in tables
        if isinstance(table, dict) and isinstance(table.get("name"), str)
    }


def upper(name: str) -> str:
    """Return the name of a sink as it is written in variables."""
    return name.upper().replace("-", "_")


def no_such_sink(name: str, known: Sequence[str]) -> str:
    """Return an error text: no sink has this name. It suggests the nearest name."""
    near = nearest(name, known)
    there = ", ".join(known) or "none"
    hint = f"did you mean {near!r}?" if near else f"there are: {there}"
    return f"no sink is called {name!r}; {hint}"


def keys_of(kind: type[Section]) -> dict[str, None]:
    """Return the keys of a section, in order."""
    return dict.fromkeys(kind.__struct_fields__)


def _copied(value: Mapping[str, object]) -> dict[str, object]:
    """Copy tables, including all nested tables that an override can change."""
    return {
        key: _copied(item)
        if isinstance(item, dict)
        else [_copied(part) if isinstance(part, dict) else part for part in item]
        if isinstance(item, list)
        else item
        for key, item in value.items()
    }

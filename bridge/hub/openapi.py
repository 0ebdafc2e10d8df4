"""The description of the API, OpenAPI 3.1, made from its operations. Pure.

``api`` says beside each handler what it is asked and what it answers. Parameters,
bodies and answers are made from their types and docstrings.
"""

import re
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from bridge import __version__
from bridge.hub.answers import LONGEST_WORD, Error

Json = dict[str, Any]


class Operation(Struct, frozen=True, kw_only=True):
    """What one handler is asked, and what it answers.

    Attributes:
        path: as it is served: ``{id:[^/]+}`` is the EventId.
        name: of the operation.
        words: what it does.
        answer: the type of the answer; None = any object.
        query: the type of the parameters; None = there are none.
        body: the type of the body of a POST; None = it is a GET.
        refusals: the statuses besides those of each answer.
        may_count: whether a vote may only be counted (202).
        is_table: whether it answers with CSV.
    """

    path: str
    name: str
    words: str
    answer: type[Struct] | None = None
    query: type[Struct] | None = None
    body: type[Struct] | None = None
    refusals: tuple[str, ...] = ()
    may_count: bool = False
    is_table: bool = False

    @property
    def is_of_event(self) -> bool:
        """Whether it is about one event."""
        return "{id" in self.path


def document(operations: Iterable[Operation]) -> Json:
    """Return the description of an API."""
    found, paths = list(operations), dict[str, Json]()
    for one in found:
        path = re.sub(r":[^}]+}", "}", one.path)
        paths.setdefault(path, {})["post" if one.body else "get"] = _operation(one)
    named = (kind for one in found for kind in (one.answer, one.body) if kind)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Hub of scheduled-events-bridge",
            "version": __version__,
            "description": "Events, bridges and decisions of a fleet, as JSON.",
        },
        "paths": paths,
        "components": {"schemas": schemas([Error, *dict.fromkeys(named)])},
    }


# -- the types of what is asked and answered -------------------------------------------


_REF = "#/components/schemas/{name}"
_OF_REPORT = ("ReportRow", _REF.format(name="ReportRow"))
_NULL = {"type": "null"}
_ATTRIBUTE = re.compile(r"^ {8}(\w+): (.+(?:\n {12}.+)*)", re.MULTILINE)
_UNDERLINED = re.compile("_([a-z])")
_LEFT_OUT = {"description", "title"}  # of the schema of a parameter


def ref(kind: type[Struct]) -> Json:
    """Return a reference to the schema of a type."""
    return {"$ref": _REF.format(name=kind.__name__)}


def schemas(kinds: Iterable[type[Struct]]) -> Json:
    """Return the schema of each type by its name, as generators of clients need it."""
    _, found = msgspec.json.schema_components(kinds, ref_template=_REF)
    docs = {name: _docs(one["description"]) for name, one in found.items()}
    docs["EventPage"] |= docs["EventRow"]
    for name, one in found.items():
        one["description"] = one["description"].partition("\n")[0]
        del one["title"]
        for key, words in docs[name].items():
            one["properties"][key]["description"] = words
    return {_plain(name): _plain(one) for name, one in found.items()}


def _parameters(kind: type[Struct]) -> list[Json]:
    """Return the parameters of a request; a time may be a day, too."""
    _, found = msgspec.json.schema_components([kind], ref_template="{name}")
    of = found[kind.__name__]
    named, docs = dict[str, Json](), _docs(of["description"])
    for field in msgspec.structs.fields(kind):
        given = of["properties"][field.encode_name]
        (first, *_) = given.get("anyOf", [given])
        schema = _plain(found[first["$ref"]] if "$ref" in first else first)
        words = docs.get(camel(field.name)) or given["description"]
        if schema.get("format") == "date-time":
            schema = {"type": "string", "maxLength": LONGEST_WORD}
            words += " RFC 3339, or a day of UTC such as 2026-11-27."
        kept = {k: v for k, v in schema.items() if k not in _LEFT_OUT and v != ""}
        named[field.encode_name] = {"description": words, "schema": kept}
    return [{"name": name, "in": "query", **one} for name, one in named.items()]


def _docs(docstring: str) -> dict[str, str]:
    """Return what a docstring says of each member, by the member's name in JSON."""
    return {
        camel(name): _sentence(words) for name, words in _ATTRIBUTE.findall(docstring)
    }


def _sentence(words: str) -> str:
    text = " ".join(words.split())
    is_value = text.partition(" ")[0].endswith(":")  # "null: not known"
    return text if is_value else f"{text[:1].upper()}{text[1:]}"


def _plain(schema: Any) -> Any:
    """Return a schema in which a member has one type, and an object a name of its own.

    Rows of lists are named without "Row": an EventRow is an Event.
    """
    if isinstance(schema, str):
        return schema if schema in _OF_REPORT else schema.removesuffix("Row")
    if isinstance(schema, list | tuple):
        return [_plain(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    options = schema.get("anyOf", [])
    if len(options) == 2 and options[1] == _NULL and "type" in options[0]:
        rest = {key: one for key, one in schema.items() if key != "anyOf"}
        schema = {**options[0], **rest, "type": [options[0]["type"], "null"]}
    if "enum" in schema:
        schema = {"type": "string", **schema}
    return {key: _plain(one) for key, one in schema.items()}


def camel(name: str) -> str:
    """Return the name of a member in JSON."""
    return _UNDERLINED.sub(lambda found: found[1].upper(), name)


# -- operations ------------------------------------------------------------------------


_TEXT: Json = {"type": "string"}
_ID: Json = {
    "name": "id",
    "in": "path",
    "required": True,
    "description": "The EventId; the case of letters does not matter.",
    "schema": _TEXT,
}
_HEADER: Json = {
    "name": "X-Sebridge",
    "in": "header",
    "required": True,
    "description": "Shows that no page of another site has sent the request.",
    "schema": {"type": "string", "const": "1"},
}
_ETAG: Json = {"ETag": {"description": "For If-None-Match.", "schema": _TEXT}}
_UNCHANGED: Json = {
    "description": "Nothing has changed since the ETag in If-None-Match.",
    "headers": _ETAG,
}
_REFUSALS = {
    "400": "A parameter, the body or a header is invalid, or a parameter unknown.",
    "401": "Nobody is signed in.",
    "403": "This person may not do it, or another site may have sent the request.",
    "404": "Nothing is known of it.",
    "409": "The event has changed, or cannot be decided so.",
    "413": "The body is longer than 64 KiB.",
    "415": "The body is not application/json.",
    "421": "The Host is not this machine (access.mode loopback).",
    "503": "The store cannot be reached.",
}
_ALWAYS = ("400", "401", "403", "421", "503")  # access, and the store


def _operation(one: Operation) -> Json:
    parameters = [_ID] if one.is_of_event else []
    parameters += _parameters(one.query) if one.query else []
    refusals = {*_ALWAYS, *one.refusals, *(["404"] if one.is_of_event else [])}
    about: Json = {"operationId": one.name, "summary": one.words}
    content = _json(ref(one.answer) if one.answer else {"type": "object"})
    good: Json = {"description": "The answer.", "content": content}
    answers: Json = {"200": good}
    if one.is_table:
        good["content"] = {"text/csv": {"schema": _TEXT}}
    elif one.body is None:
        good["headers"] = _ETAG
        answers["304"] = _UNCHANGED
    else:
        parameters.append(_HEADER)
        refusals |= {"413", "415"}
        about["requestBody"] = {"required": True, "content": _json(ref(one.body))}
    if one.may_count:
        words = "Counted: other people are missing."
        answers["202"] = {"description": words, "content": content}
    answers |= {
        status: {"description": _REFUSALS[status], "content": _json(ref(Error))}
        for status in sorted(refusals)
    }
    given = {"parameters": parameters} if parameters else {}
    return {**about, **given, "responses": answers}


def _json(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}

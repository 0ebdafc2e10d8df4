"""Our JSON Schemas as validators: each is made once, which takes as long as 50 uses."""

import json
from functools import cache

from jsonschema import Draft202012Validator, FormatChecker

from bridge.configuration import json_schema


@cache
def validator(what: str, part: str = "") -> Draft202012Validator:
    """Return that of ``config``, ``event`` or ``approval``, formats and all.

    Args:
        what: the schema.
        part: one of its definitions; "" = all of it.
    """
    schema = json.loads(json_schema.text(what))
    Draft202012Validator.check_schema(schema)
    if part:
        schema = {"$ref": f"#/definitions/{part}", "definitions": schema["definitions"]}
    return Draft202012Validator(schema, format_checker=FormatChecker())

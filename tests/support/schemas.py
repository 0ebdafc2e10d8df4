"""Our JSON Schemas as validators: each is made once, which takes as long as 50 uses."""

import json
from functools import cache

from jsonschema import Draft202012Validator, FormatChecker

from bridge.configuration import json_schema


@cache
def validator(what: str) -> Draft202012Validator:
    """Return that of ``config``, ``event`` or ``approval``, formats and all."""
    schema = json.loads(json_schema.text(what))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema, format_checker=FormatChecker())

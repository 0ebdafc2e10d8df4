"""The hash that ids are made of. Pure."""

import hashlib
import json


def hash32(value: object) -> str:
    """Return the first 32 hex digits of SHA-256 over the canonical JSON of ``value``.

    Canonical means: sorted keys, no spaces, no escapes for non-ASCII characters, UTF-8.
    The standard library writes the JSON, so that anybody can check an id with it.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]

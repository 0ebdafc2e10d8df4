"""The token of a form: bound to a person, an event and its content.

Whoever posts a form must have been shown it: no page of another site can know the
token, and one for another event, or for another content, is of no use.
"""

import hashlib
import hmac
import secrets

from sqlalchemy import Connection, select

from bridge.hub.store.statements import insert
from bridge.hub.store.tables import meta

_NAME = "form-key"


def form_key(connection: Connection) -> bytes:
    """Return the key of all hubs on this store; the first one makes it."""
    made = insert(meta).values(name=_NAME, value=secrets.token_hex(32))
    connection.execute(made.on_conflict_do_nothing())
    found = connection.scalar(select(meta.c.value).where(meta.c.name == _NAME))
    return str(found).encode()


def token(key: bytes, person: str, event: str, content: str) -> str:
    """Return the token of a form.

    Args:
        key: of the store.
        person: the id of whoever is shown the form.
        event: the EventId as it is compared.
        content: the fingerprint of the event that is shown.
    """
    text = f"{person}\0{event}\0{content}"
    signed = text.encode("utf-8", "replace")
    return hmac.new(key, signed, hashlib.sha256).hexdigest()


def is_token(given: str, key: bytes, person: str, event: str, content: str) -> bool:
    """Whether a token was made for this form."""
    wanted = token(key, person, event, content)
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())

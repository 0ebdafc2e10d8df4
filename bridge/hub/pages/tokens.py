"""Signs forms: the token of a form is valid for one person, event and content.

A page of another site does not know the token, so it cannot post the form in a person's
name. A token for another event or another content is refused.
"""

import hashlib
import hmac
import secrets

from sqlalchemy import Connection, select

from bridge.hub.store.statements import insert
from bridge.hub.store.tables import meta

_NAME = "form-key"


def stored_key(connection: Connection) -> bytes:
    """Return the key that all hubs on this store share; empty = there is none yet."""
    found = connection.scalar(select(meta.c.value).where(meta.c.name == _NAME))
    return (found or "").encode()


def created_key(connection: Connection) -> bytes:
    """Return the key that all hubs on this store share; the first hub creates it."""
    made = insert(meta).values(name=_NAME, value=secrets.token_hex(32))
    connection.execute(made.on_conflict_do_nothing())
    return stored_key(connection)


def token(key: bytes, person: str, event: str, content: str) -> str:
    """Return the token of a form.

    Args:
        key: the key of the store, see ``stored_key``.
        person: the id of the person who sees the form.
        event: the EventId in capitals.
        content: the fingerprint of the event that the form shows.
    """
    text = f"{person}\0{event}\0{content}"
    signed = text.encode("utf-8", "replace")
    return hmac.new(key, signed, hashlib.sha256).hexdigest()


def is_token(given: str, key: bytes, person: str, event: str, content: str) -> bool:
    """Whether a token was made for this form."""
    wanted = token(key, person, event, content)
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())

"""Standard Webhooks: who receives can tell that it is genuine, and how old it is.

Source: https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/
        standard-webhooks.md
"""

import binascii
import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Iterator
from datetime import datetime

from bridge.foundation.errors import Reason, RefusedDeliveryError
from bridge.foundation.hashing import hash32
from bridge.foundation.sections import Section
from bridge.foundation.values import Secret
from bridge.net.http_client import revealed

HEADERS = ("webhook-id", "webhook-timestamp", "webhook-signature")
_PREFIX = "whsec_"
_LEAST, _MOST = 24, 64
_PLAIN_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_NO_SECRET = f"must be {_PREFIX} and {_LEAST} to {_MOST} bytes in base64"


class SignatureConfig(Section, frozen=True, kw_only=True):
    """``[sinks.signature]``: several secrets while one takes the place of another.

    Attributes:
        secrets: what requests are signed with, each whsec_ and 24 to 64 bytes in
            base64; several while one takes the place of another. Example:
            ``["env:SIEM_SIGNING_SECRET"]``.
    """

    secrets: tuple[Secret, ...]

    def faults(self) -> Iterator[tuple[str, str]]:
        """Check each secret, without showing it."""
        if not self.secrets:
            yield "secrets", "must hold at least one secret"
        for index, secret in enumerate(self.secrets):
            try:
                _key(secret.reveal())
            except ValueError as error:
                yield f"secrets[{index}]", str(error)


def signed(
    config: SignatureConfig, event_id: str, body: bytes, now: datetime
) -> dict[str, str]:
    """Return the headers of one attempt; their id is the same in all attempts.

    Args:
        config: the secrets; each is read anew, and makes a signature of its own.
        event_id: of the CloudEvent; in characters that the standard has not got, its
            hash stands in its place.
        body: as it goes out.
        now: the time of this attempt.

    Raises:
        RefusedDeliveryError: a secret cannot be had any more.
    """
    message_id = event_id if _PLAIN_ID.fullmatch(event_id) else hash32(event_id)
    moment = str(int(now.timestamp()))
    content = f"{message_id}.{moment}.".encode() + body
    signatures = []
    for index, secret in enumerate(config.secrets):
        what = f"signature.secrets[{index}]"
        try:
            key = _key(revealed(secret, what))
        except ValueError as error:
            text = f"{what} {error}"
            raise RefusedDeliveryError(text, Reason.UNAUTHORIZED) from error
        digest = hmac.new(key, content, hashlib.sha256).digest()
        signatures.append(f"v1,{b64encode(digest).decode()}")
    values = (message_id, moment, " ".join(signatures))
    return dict(zip(HEADERS, values, strict=True))


def _key(secret: str) -> bytes:
    """Return the bytes of a secret.

    Raises:
        ValueError: what it must be; nothing of what it is.
    """
    try:
        text = secret.removeprefix(_PREFIX).rstrip("=")
        key = b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(_NO_SECRET) from None
    if not _LEAST <= len(key) <= _MOST:
        raise ValueError(_NO_SECRET)
    return key

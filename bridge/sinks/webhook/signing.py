"""Standard Webhooks: the receiver can verify the origin and the age of a request.

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
    """``[sinks.signature]``: one secret, or several while a secret is replaced.

    Attributes:
        secrets: the keys that sign requests, each whsec_ and 24 to 64 bytes in base64;
            several while a secret is replaced. Example:
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
    """Return the headers of one attempt; the id is the same in all attempts.

    Args:
        config: the secrets; each is read again, and makes its own signature.
        event_id: the id of the CloudEvent; if it has characters that the standard does
            not allow, its hash is used.
        body: as it is sent.
        now: the time of this attempt.

    Raises:
        RefusedDeliveryError: a secret can no longer be read.
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
        ValueError: the secret has another form; the text repeats no part of it.
    """
    try:
        text = secret.removeprefix(_PREFIX).rstrip("=")
        key = b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(_NO_SECRET) from None
    if not _LEAST <= len(key) <= _MOST:
        raise ValueError(_NO_SECRET)
    return key

"""Check the tokens and rights of clients, by the rules of shared access.

Without any rule, every client may do everything, as with Microsoft's emulator. With a
rule, a client needs a token, and each link and request needs a right. Pure, except for
the clock.

A token names its audience (the path that it is for), its expiry and its rule. It is
signed with a key of that rule:

    SharedAccessSignature sr=<audience>&sig=<signature>&se=<expiry>&skn=<rule>

Source: Azure Service Bus, access control with shared access signatures.
"""

import hmac
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from math import inf
from urllib.parse import parse_qsl, quote_plus

from msgspec import Struct

from bridge.simulator.servicebus.values import Condition, RefusedError

MANAGEMENT_SUFFIX = "/$management"

_SCHEME = "SharedAccessSignature "
_FIELDS = ("sr", "sig", "se", "skn")


class Right(StrEnum):
    """A right, spelled as in Azure; Manage includes the other two."""

    LISTEN = "Listen"
    SEND = "Send"
    MANAGE = "Manage"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRule:
    """A rule of a namespace, a queue or a topic.

    Attributes:
        name: the name; case matters.
        keys: the keys that its tokens may be signed with.
        rights: the rights that its tokens give.
    """

    name: str
    keys: tuple[str, ...] = field(repr=False)
    rights: frozenset[Right]

    def allows(self, right: Right) -> bool:
        """Return whether a token of this rule gives the right."""
        return right in self.rights or Right.MANAGE in self.rights


class Grant(Struct, frozen=True, kw_only=True):
    """A valid token.

    Attributes:
        scope: the path that the token is for; empty: the namespace.
        rule: the rule whose key has signed the token.
        expires_at: seconds since the epoch.
    """

    scope: str
    rule: AccessRule
    expires_at: float

    def covers(self, path: str) -> bool:
        """Return whether a path is the scope of the token, or below it."""
        return _is_within(path.lower(), self.scope)


ROOT = AccessRule(
    name="RootManageSharedAccessKey",
    keys=("SAS_KEY_VALUE",),
    rights=frozenset({Right.MANAGE}),
)
"""The default root rule of the namespace; a rule of the same name replaces it."""


class Access:
    """The rules of a broker.

    Args:
        rules: the rules of the namespace (path "") and of its entities, by their paths
            in lower case. The owner of this mapping may change it at any time.
        clock: returns seconds since the epoch.
    """

    def __init__(
        self,
        rules: Mapping[str, Sequence[AccessRule]],
        clock: Callable[[], float],
    ) -> None:
        self._rules = rules
        self._clock = clock

    @property
    def is_open(self) -> bool:
        """Whether every client may do everything, because there is no rule."""
        return not any(self._rules.values())

    @property
    def root(self) -> AccessRule:
        """The rule that gives every right on the whole namespace."""
        rules = self._rules.get("", ())
        return next((rule for rule in rules if rule.name == ROOT.name), ROOT)

    def admit(self, token: object, audience: str) -> Grant:
        """Check a token, and return it as a grant.

        Args:
            token: the token as the client sent it.
            audience: the path that the client wants to use it for; empty: the
                namespace.

        Raises:
            RefusedError: the token is malformed, is not signed with a known key, has
                expired, or is for another path.
        """
        fields = _parse(token)
        scope = audience_path(fields["sr"])
        rule = self._signer(fields, scope)
        expires_at = _seconds(fields["se"])
        if expires_at <= self._clock():
            raise _unauthorized(
                "ExpiredToken: The token is expired. Expiration time: "
                f"'{_written(expires_at)}'."
            )
        if not _is_within(audience.lower(), scope):
            raise _unauthorized(
                f"InvalidAudience: the token is for {scope!r}, not for {audience!r}"
            )
        return Grant(scope=audience.lower(), rule=rule, expires_at=expires_at)

    def rules_with(self, name: str, key: str) -> list[tuple[str, AccessRule]]:
        """Return the rules with this name and key, and the paths that they are of."""
        wanted = key.encode()
        return [
            (path, rule)
            for path in {"", *self._rules}
            for rule in self._rules_of(path)
            if rule.name == name
            if any(hmac.compare_digest(each.encode(), wanted) for each in rule.keys)
        ]

    def claims(self) -> "Claims":
        """Return the claims of a new connection, which have no grants yet."""
        return Claims(self, self._clock)

    def _signer(self, fields: Mapping[str, str], scope: str) -> AccessRule:
        name = fields["skn"]
        for path in _with_parents(scope):
            for rule in self._rules_of(path):
                if rule.name == name and any(
                    _is_signed_with(key, fields) for key in rule.keys
                ):
                    return rule
        raise _unauthorized(
            f"InvalidSignature: the token is not signed with a key of a rule {name!r} "
            f"of {scope or 'the namespace'!r} or of a path above it"
        )

    def _rules_of(self, path: str) -> Sequence[AccessRule]:
        """Return the rules of a path; the namespace always has the root rule."""
        found = self._rules.get(path, ())
        return found if path or self.root in found else (*found, self.root)


class Claims:
    """The valid tokens of one connection.

    Args:
        access: the rules of the broker.
        clock: returns seconds since the epoch.
    """

    def __init__(self, access: Access, clock: Callable[[], float]) -> None:
        self._access = access
        self._clock = clock
        self._grants: dict[str, Grant] = {}

    def put(self, token: object, audience: str) -> None:
        """Store a token; it replaces an earlier one for the same audience.

        While the broker has no rules, an invalid token is ignored. A valid token is
        stored even then: a rule may be added while the connection is open.

        Raises:
            RefusedError: the token is invalid; see ``Access.admit``.
        """
        try:
            grant = self._access.admit(token, audience)
        except RefusedError:
            if not self._access.is_open:
                raise
        else:
            self._grants[grant.scope] = grant

    def sign_in(self, name: str, key: str) -> bool:
        """Take the name of a rule and its key, instead of tokens (SASL PLAIN).

        Returns:
            Whether a rule has this name and key; True if the broker has no rules.
        """
        rules = self._access.rules_with(name, key)
        for path, rule in rules:
            self._grants[path] = Grant(scope=path, rule=rule, expires_at=inf)
        return bool(rules) or self._access.is_open

    def gives(self, path: str, right: Right) -> bool:
        """Return whether the connection has a right on a path."""
        try:
            self.check(path, right)
        except RefusedError:
            return False
        return True

    def check(self, path: str, right: Right) -> None:
        """Check that the connection has a right on a path.

        Raises:
            RefusedError: no unexpired token gives the right.
        """
        if self._access.is_open:
            return
        ends = [
            grant.expires_at
            for grant in self._grants.values()
            if grant.covers(path) and grant.rule.allows(right)
        ]
        if ends and self._clock() < max(ends):
            return
        if ends:
            raise _unauthorized(
                "ExpiredToken: The token is expired. Expiration time: "
                f"'{_written(max(ends))}'. Resource: {path!r}."
            )
        raise _unauthorized(
            f"Unauthorized access. '{right}' claim(s) are required to perform this "
            f"operation. Resource: {path!r}."
        )


def audience_path(audience: str) -> str:
    """Return the path of an audience in lower case, without its host and port."""
    _, scheme, rest = audience.partition("://")
    path = rest.partition("/")[2] if scheme else audience.partition("/")[2]
    path = path.partition("?")[0]  # clients of the administration API add a query
    return path.strip("/").lower().removesuffix(MANAGEMENT_SUFFIX)


def sign(key: str, audience: str, expiry: str) -> str:
    """Return the signature of a token.

    Args:
        key: a key of a rule.
        audience: the audience in the token, before it is percent-encoded.
        expiry: seconds since the epoch.
    """
    return _signature(key, quote_plus(audience), expiry)


def _signature(key: str, quoted: str, expiry: str) -> str:
    signed = hmac.digest(key.encode(), f"{quoted}\n{expiry}".encode(), "sha256")
    return b64encode(signed).decode()


def _is_signed_with(key: str, fields: Mapping[str, str]) -> bool:
    # Clients percent-encode the audience with lower-case or upper-case hex digits.
    quoted = (fields["quoted"], quote_plus(fields["sr"]))
    wanted = fields["sig"].encode()
    return any(
        hmac.compare_digest(_signature(key, each, fields["se"]).encode(), wanted)
        for each in quoted
    )


def _parse(token: object) -> dict[str, str]:
    text = token.decode(errors="replace") if isinstance(token, bytes) else token
    if isinstance(text, str):  # aiohttp decodes invalid UTF-8 as lone surrogates
        text = text.encode(errors="replace").decode()
    if not isinstance(text, str) or not text.startswith(_SCHEME):
        raise _unauthorized(
            "MalformedToken: with rules configured, this broker knows only tokens that "
            "begin with 'SharedAccessSignature'; it cannot check those of Entra ID"
        )
    raw = dict(part.partition("=")[::2] for part in text[len(_SCHEME) :].split("&"))
    fields = dict(parse_qsl(text[len(_SCHEME) :], keep_blank_values=True))
    # Some clients do not percent-encode the signature: its plus signs became spaces.
    fields["sig"] = fields.get("sig", "").replace(" ", "+")
    if missing := [name for name in _FIELDS if not fields.get(name)]:
        raise _unauthorized(f"MalformedToken: the token lacks {', '.join(missing)}")
    return {**fields, "quoted": raw.get("sr", "")}


def _seconds(expiry: str) -> float:
    try:
        return float(int(expiry))
    except (ValueError, OverflowError) as error:
        raise _unauthorized(
            "MalformedToken: se is not a number of seconds since 1970"
        ) from error


def _written(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat()
    except (ValueError, OverflowError, OSError):  # a time before the year 1
        return f"{seconds:g}"


def _with_parents(scope: str) -> Iterator[str]:
    """Return a path and all paths above it; the last is "", the namespace."""
    parts = scope.split("/") if scope else []
    for count in range(len(parts), -1, -1):
        yield "/".join(parts[:count])


def _is_within(path: str, scope: str) -> bool:
    return not scope or path == scope or path.startswith(f"{scope}/")


def _unauthorized(description: str) -> RefusedError:
    return RefusedError(Condition.UNAUTHORIZED, description)

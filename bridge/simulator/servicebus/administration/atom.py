"""Read and write Atom in the form that Service Bus and its clients use.

Clients compare names including their prefixes. So this module writes XML itself, since
a library would choose its own prefixes.

Source: Azure Service Bus, REST: entities. @azure/service-bus 7.9 (atomXmlHelper).
"""

import secrets
from base64 import b64encode
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from urllib.parse import quote
from xml.etree.ElementTree import (  # nosec B405 - no document type is read
    Element,
    ParseError,
    fromstring,
)
from xml.sax.saxutils import escape, quoteattr  # these parse nothing  # nosec B406

from msgspec import Struct

from bridge.simulator.servicebus.access import AccessRule, Right

CONNECT = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"
SCHEMA = "http://www.w3.org/2001/XMLSchema"
_ATOM = "http://www.w3.org/2005/Atom"
_TYPE = f"{{{INSTANCE}}}type"


class Entry(Struct, frozen=True, kw_only=True):
    """One entity or rule.

    Attributes:
        path: the path below the namespace, such as topic/Subscriptions/name.
        title: the name.
        content: the description in XML.
        created_at: seconds since the epoch.
        updated_at: seconds since the epoch.
    """

    path: str
    title: str
    content: str
    created_at: float
    updated_at: float


class Page(Struct, frozen=True, kw_only=True):
    """A part of a list.

    Attributes:
        path: the path of the list.
        entries: the entries of this part.
        next_query: the URL query for the next part; None: there is none.
    """

    path: str
    entries: Sequence[Entry]
    next_query: str | None = None


def element(name: str, text: str, attributes: str = "") -> str:
    """Return an element with a text."""
    return f"<{name}{attributes}>{escape(text)}</{name}>"


def attribute(name: str, value: str) -> str:
    """Return an attribute, after a space."""
    return f" {name}={quoteattr(value)}"


def description(name: str, parts: Iterable[str]) -> str:
    """Return the description of an entity, with the namespaces that it needs."""
    spaces = attribute("xmlns", CONNECT) + attribute("xmlns:i", INSTANCE)
    return f"<{name}{spaces}>{''.join(parts)}</{name}>"


def entry_document(base: str, entry: Entry) -> str:
    """Return an entry as an Atom document.

    Args:
        base: the address of the namespace, with a slash at the end.
        entry: the entity or rule.
    """
    return _entry(base, entry, attribute("xmlns", _ATOM))


def feed_document(base: str, page: Page, title: str) -> str:
    """Return a part of a list as an Atom feed, with a link to the next part."""
    href = base + quote(page.path)
    links = _link("self", href)
    if page.next_query is not None:
        links += _link("next", f"{href}?{page.next_query}")
    head = element("title", title, ' type="text"') + element("id", href)
    updated = element("updated", moment(datetime.now(UTC).timestamp()))
    entries = "".join(_entry(base, entry, "") for entry in page.entries)
    spaces = attribute("xmlns", _ATOM)
    return f"<feed{spaces}>{head}{updated}{links}{entries}</feed>"


def error_document(status: int, detail: str) -> str:
    """Return an error as an XML document."""
    inner = element("Code", str(status)) + element("Detail", detail)
    return f"<Error>{inner}</Error>"


def moment(seconds: float) -> str:
    """Return seconds since the epoch as ISO 8601, in UTC."""
    return written_moment(datetime.fromtimestamp(seconds, UTC))


def written_moment(found: datetime) -> str:
    """Return a time in UTC as ISO 8601."""
    return found.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def read_description(body: bytes, name: str) -> Element:
    """Return the description in an entry.

    Raises:
        AdministrationError: the body is not an entry with such a description.
    """
    try:
        text = body.decode("utf-8-sig")
        if "<!DOCTYPE" in text or "<!ENTITY" in text:
            raise bad("The body has a document type, which is not allowed.")
        root = fromstring(text)  # noqa: S314 - it declares no entities  # nosec B314
    except (ParseError, UnicodeDecodeError, ValueError) as error:
        raise bad(f"The body is not XML: {error}.") from error
    found = next((each for each in root.iter() if local(each) == name), None)
    if local(root) != "entry" or found is None:
        raise bad(f"The body is not an Atom entry with a {name}.")
    return found


def local(found: Element) -> str:
    """Return the name of an element without its namespace."""
    return found.tag.rpartition("}")[2]


def child(found: Element, name: str) -> Element | None:
    """Return the first inner element with this name."""
    return next((each for each in found if local(each) == name), None)


def text_of(found: Element, name: str) -> str | None:
    """Return the text of an inner element; None: it is absent or empty."""
    inner = child(found, name)
    return None if inner is None else (inner.text or None)


def type_of(found: Element) -> str:
    """Return the type of an element (i:type) without its prefix; empty: none."""
    return found.get(_TYPE, "").rpartition(":")[2]


def _entry(base: str, entry: Entry, spaces: str) -> str:
    # Clients read names from this address, and do not decode a percent-encoded $.
    href = base + quote(entry.path, safe="/$")
    parts = [
        element("id", href),
        element("title", entry.title, ' type="text"'),
        element("published", moment(entry.created_at)),
        element("updated", moment(entry.updated_at)),
        f"<author>{element('name', 'sbemulatorns')}</author>",
        _link("self", href),
        f'<content type="application/xml">{entry.content}</content>',
    ]
    return f"<entry{spaces}>{''.join(parts)}</entry>"


def _link(relation: str, href: str) -> str:
    return f"<link{attribute('rel', relation)}{attribute('href', href)}/>"


# -- The errors of the administration API ----------------------------------------------
#
# Source: Azure Service Bus, Resource Manager exceptions: status and sub code.


class AdministrationError(Exception):
    """A request is refused.

    Attributes:
        status: the HTTP status.
        detail: a text for people, with the sub code of Service Bus.
    """

    def __init__(self, status: HTTPStatus, what: str) -> None:
        sub_code = f"{status.value}00"
        super().__init__(what)
        self.status = status
        self.detail = f"SubCode={sub_code}. {status.phrase}. {what}"


def bad(what: str) -> AdministrationError:
    """Return the error for an invalid request."""
    return AdministrationError(HTTPStatus.BAD_REQUEST, what)


def missing(what: str) -> AdministrationError:
    """Return the error for a request about an entity or rule that does not exist."""
    return AdministrationError(HTTPStatus.NOT_FOUND, what)


def conflict(what: str) -> AdministrationError:
    """Return the error for creating an entity or rule that already exists."""
    return AdministrationError(HTTPStatus.CONFLICT, what)


# -- the rules of shared access --------------------------------------------------------
#
# A rule without keys gets new ones, which its description shows.
#
# Source: azure-servicebus 7.15 (AuthorizationRule) and @azure/service-bus 7.9
#         (buildRawAuthorizationRule).

AUTHORIZATION = "AuthorizationRules"

_RULE = "AuthorizationRule"
_RULE_TYPE = attribute("i:type", "SharedAccessAuthorizationRule")
_KEYS = ("PrimaryKey", "SecondaryKey")
_KEY_BYTES = 32


def read_authorization(given: Element) -> tuple[AccessRule, ...]:
    """Return the rules of a description.

    Raises:
        AdministrationError: a rule has no name, no right or an unknown right, or two
            rules have the same name.
    """
    rules = child(given, AUTHORIZATION)
    found = [] if rules is None else [each for each in rules if local(each) == _RULE]
    read = tuple(_read_rule(each) for each in found)
    names = [rule.name for rule in read]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise bad(f"Two {AUTHORIZATION} have the KeyName {twice[0]!r}.")
    return read


def written_authorization(rules: object) -> str:
    """Return the rules as an element."""
    kept = rules if isinstance(rules, tuple) else ()
    inner = "".join(
        _written_rule(rule) for rule in kept if isinstance(rule, AccessRule)
    )
    return f"<{AUTHORIZATION}>{inner}</{AUTHORIZATION}>"


def _read_rule(given: Element) -> AccessRule:
    name, rights = text_of(given, "KeyName"), child(given, "Rights")
    if not name:
        raise bad(f"An {_RULE} needs a KeyName.")
    texts = [] if rights is None else [(each.text or "").strip() for each in rights]
    try:
        read = frozenset(Right(text) for text in texts)
    except ValueError as error:
        raise bad(
            f"AccessRights are {', '.join(Right)}, not {', '.join(texts)!r}."
        ) from error
    if not read:
        raise bad(f"The {_RULE} {name!r} needs Rights: some of {', '.join(Right)}.")
    keys = tuple(text_of(given, each) or _new_key() for each in _KEYS)
    return AccessRule(name=name, keys=keys, rights=read)


def _new_key() -> str:
    return b64encode(secrets.token_bytes(_KEY_BYTES)).decode()


def _written_rule(rule: AccessRule) -> str:
    rights = "".join(
        element("AccessRights", right)
        for right in reversed(Right)
        if right in rule.rights
    )
    keys = [element(name, key) for name, key in zip(_KEYS, rule.keys, strict=False)]
    parts = [
        element("ClaimType", "SharedAccessKey"),
        element("ClaimValue", "None"),
        f"<Rights>{rights}</Rights>",
        element("KeyName", rule.name),
        *keys,
    ]
    return f"<{_RULE}{_RULE_TYPE}>{''.join(parts)}</{_RULE}>"

"""Takes off what older senders wrap a body in; says why one is no JSON. Pure.

    "@" 6 "string" 8 51 "http://schemas.microsoft.com/2003/10/Serialization/", and text
        a string by DataContractSerializer, in binary: the task PublishToAzureServiceBus
        of Azure Pipelines (useDataContractSerializer, its default), and service hooks
        of Azure DevOps
    <string xmlns="http://schemas.microsoft.com/2003/10/Serialization/">text</string>
        the same as XML
    base64 of JSON
        Logic Apps, where a workflow encodes contentData that is encoded already

Sources: MC-NBFX (the records), github.com/microsoft/azure-pipelines-tasks/issues/17470,
github.com/Azure/azure-sdk-for-go/issues/18547, github.com/Azure/logicapps/issues/143
"""

import base64
import binascii
import html
import re

_NAMESPACE = b"http://schemas.microsoft.com/2003/10/Serialization/"
_BINARY = b"@\x06string\x08" + bytes([len(_NAMESPACE)]) + _NAMESPACE
_XML = re.compile(
    rb'\s*(?:<\?xml[^>]*\?>\s*)?<string xmlns="' + re.escape(_NAMESPACE) + rb'">'
    rb"([^<]*)</string>\s*"
)
_BASE64 = re.compile(rb'\s*"?([A-Za-z0-9+/\s]{8,}={0,2})"?\s*')
# Records of text in UTF-8 by the number of bytes of their length; + 1 ends the element.
_LENGTHS = {0x98: 1, 0x9A: 2, 0x9C: 4}
_END = 0x01


def content(body: bytes) -> bytes | None:
    """Return the text that a body wraps; None = it wraps none that can be read."""
    if body.startswith(_BINARY):
        return _records(body[len(_BINARY) :])
    if found := _XML.fullmatch(body):
        return html.unescape(found[1].decode("utf-8", "replace")).encode()
    if found := _BASE64.fullmatch(body):
        return decoded(found[1])
    return None


def decoded(text: bytes) -> bytes | None:
    """Return the JSON object that a text has in base64; None = it has none."""
    try:
        found = base64.b64decode(b"".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        return None
    is_object = found.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{"
    return found if is_object else None


def _records(rest: bytes) -> bytes | None:
    """Return the text of all records of an element, which must end with it."""
    found = b""
    while rest and rest[0] != _END:
        kind, is_last = rest[0] & ~1, rest[0] & 1
        size = _LENGTHS.get(kind)
        if size is None:
            return None
        end = 1 + size + int.from_bytes(rest[1 : 1 + size], "little")
        if len(rest) < end:
            return None
        found, rest = found + rest[1 + size : end], rest[end:]
        if is_last:
            return found if not rest else None
    return found if rest == bytes([_END]) else None


def why_no_json(text: bytes) -> str:
    """Return what a text seems to be in place of JSON, after ": "; "" = not known."""
    if not text.strip():
        return ": it is empty"
    if _NAMESPACE in text[:200]:
        return (
            ": it is written by DataContractSerializer of .NET; send text in UTF-8 "
            "(Azure Pipelines: useDataContractSerializer: false)"
        )
    if text.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd")):
        return ": it is compressed, which content-encoding does not change"
    if text.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in text[:4]:
        return ": it is UTF-16 or UTF-32; the charset must be UTF-8"
    try:
        text.decode()
    except UnicodeDecodeError:
        return ": it is not UTF-8; the charset must be UTF-8"
    return ": it is XML" if text.lstrip().startswith(b"<") else ""

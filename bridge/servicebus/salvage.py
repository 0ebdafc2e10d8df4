"""Makes a replacement for an AMQP message that the SDK cannot decode. Pure.

Every AMQP value states its own length. So the sections of a message, the fields of a
section and the entries of a map can be separated without decoding them.

If only entries of annotations or application properties cannot be decoded, they alone
are left out. LOST, a delivery annotation, names the properties: the receiver refuses
the message if it needs one of them. Any other replacement contains:

    header, annotations, properties   each field or entry that can be decoded
    data section                      all bytes after the annotations, unchanged
    MARK                              a delivery annotation: this is a replacement

If a sender sets MARK in a message, only that message is refused.

Source: AMQP 1.0, part 1: 1.2 type encodings; part 3: 3.2 message format.
"""

from collections.abc import Callable, Iterator

MARK = b"x-opt-sebridge-undecodable"
LOST = b"x-opt-sebridge-lost"
WORDS = "the message cannot be decoded"

_DELIVERY_ANNOTATIONS, _DATA = 0x71, 0x75
_HEADER, _MESSAGE_ANNOTATIONS, _PROPERTIES = 0x70, 0x72, 0x73
_APPLICATION_PROPERTIES, _FOOTER = 0x74, 0x78
_MAPS = frozenset({_MESSAGE_ANNOTATIONS, _APPLICATION_PROPERTIES, _FOOTER})
_FIELDS = {_HEADER: 5, _PROPERTIES: 13}  # AMQP defines no further fields
_NULL, _TRUE, _SYMBOL, _BINARY = b"\x40", b"\x41", b"\xa3", b"\xb0"
_LIST, _MAP = b"\xd0", b"\xd1"

# The first half of a format code gives the width of the value, or of its size.
_FIXED = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}
_VARIABLE = {0xA: 1, 0xB: 4}
_COMPOUND = {0xC: 1, 0xD: 4}
_ARRAY = {0xE: 1, 0xF: 4}
_SIZED = _VARIABLE | _COMPOUND | _ARRAY

_DEEPEST = 64  # the SDK's limit
_MOST_BYTES = 256 * 1024  # an approval has 64 KiB, and as many for its properties
_MOST_ENTRIES = 500  # that are looked at one by one
_STRINGS = frozenset({0xA1, 0xB1})
_MOST_EMPTY = 255  # elements without bytes: an array of twelve bytes may have 65536

IsReadable = Callable[[bytes], bool]


def is_plain(payload: bytes) -> bool:
    """Return whether a message can be decoded with little time and memory.

    All sizes and counts must be right, and the nesting not too deep. No array may claim
    thousands of elements that take no bytes, since the SDK would create them all. The
    sections, without data sections, must not be too large.
    """
    offset = much = 0
    try:
        while offset < len(payload):
            if payload[offset : offset + 2] != b"\x00\x53":
                return False
            end = _end(payload, offset + 3)
            if payload[offset + 2] != _DATA:
                much += end - offset
            if much > _MOST_BYTES or _checked(payload, offset + 3, 0) != end:
                return False
            offset = end
    except (IndexError, ValueError):
        return False
    return True


def replacement(payload: bytes, is_readable: IsReadable) -> bytes:
    """Return a message that can be decoded, with the readable parts of another one.

    Args:
        payload: the message that cannot be decoded.
        is_readable: returns whether the SDK can decode a message.
    """
    return _without_lost(payload, is_readable) or _readable_parts(payload, is_readable)


def _without_lost(payload: bytes, is_readable: IsReadable) -> bytes | None:
    """Return a message without entries that cannot be decoded; None if that is no help.

    The delivery annotations are left out, too: nothing needs them.
    """
    kept: list[bytes] = []
    lost: list[bytes] = []
    whole = count = 0
    for code, value, end in _sections(payload):
        if code in _MAPS:
            parts = _elements(value)
            if len(parts) > 2 * _MOST_ENTRIES:
                return None
            entries = _entries(code, parts, is_readable)
            count += len(parts) - len(entries)
            if code == _APPLICATION_PROPERTIES:
                lost += _keys(parts, without=entries)
            kept.append(_section(code, _MAP, entries))
        elif code != _DELIVERY_ANNOTATIONS:
            kept.append(payload[whole:end])
        whole = end
    if not count or whole < len(payload) or any(key[0] not in _STRINGS for key in lost):
        return None
    mark = [_SYMBOL + _short(LOST), _list(lost)]
    found = b"".join([_section(_DELIVERY_ANNOTATIONS, _MAP, mark), *kept])
    return found if is_readable(found) else None


def _keys(parts: list[bytes], *, without: list[bytes]) -> list[bytes]:
    """Return the keys of a map that are not among other entries of it."""
    found = set(without[::2])
    return [key for key in parts[::2] if key not in found]


def _readable_parts(payload: bytes, is_readable: IsReadable) -> bytes:
    mark = _section(_DELIVERY_ANNOTATIONS, _MAP, [_SYMBOL + _short(MARK), _TRUE])
    kept, offset = [mark], 0
    for code, value, end in _sections(payload):
        if code in _FIELDS:
            fields = _elements(value)[: _FIELDS[code]]
            kept.append(_section(code, _LIST, _kept(code, fields, is_readable)))
        elif code == _MESSAGE_ANNOTATIONS:
            entries = _elements(value)
            kept.append(_section(code, _MAP, _entries(code, entries, is_readable)))
        if code < _PROPERTIES:
            offset = end
    content = payload[offset:]
    data = _head(_DATA) + _BINARY + len(content).to_bytes(4) + content
    whole = b"".join([*kept, data])
    return whole if is_readable(whole) else mark + data


def _checked(payload: bytes, offset: int, depth: int) -> int:
    """Return where a value ends.

    Raises:
        IndexError, ValueError: the value is not plain; see ``is_plain``.
    """
    code = payload[offset]
    if code != 0:
        return _checked_body(payload, code, offset + 1, depth)
    if depth >= _DEEPEST:
        raise ValueError("too deep")
    return _checked(payload, _checked(payload, offset + 1, depth + 1), depth + 1)


def _checked_body(payload: bytes, code: int, offset: int, depth: int) -> int:
    """Return where a value ends; its format code was read before."""
    kind = code >> 4
    if kind in _FIXED:
        return _within(payload, offset + _FIXED[kind])
    width = _SIZED[kind] if kind in _SIZED else _unknown()
    end = _within(
        payload, offset + width + int.from_bytes(payload[offset : offset + width])
    )
    if kind in _VARIABLE:
        return end
    if depth >= _DEEPEST:
        raise ValueError("too deep")
    first = offset + 2 * width
    count = int.from_bytes(payload[offset + width : first])
    if kind in _COMPOUND:
        for _ in range(count):
            first = _checked(payload, first, depth + 1)
    elif count:
        first = _checked_array(payload, first, count)
    if first != end:
        raise ValueError("a size is wrong")
    return end


def _checked_array(payload: bytes, offset: int, count: int) -> int:
    """Return where the elements of an array end; arrays of arrays are not plain."""
    code = payload[offset]
    kind, offset = code >> 4, offset + 1
    if kind in _VARIABLE:
        for _ in range(count):
            offset = _checked_body(payload, code, offset, _DEEPEST)
        return offset
    width = _FIXED[kind] if kind in _FIXED else _unknown()
    if not width and count > _MOST_EMPTY:
        raise ValueError("an array of nothing")
    return offset + count * width


def _unknown() -> int:
    raise ValueError("no such format code here")


def _within(payload: bytes, end: int) -> int:
    if end > len(payload):
        raise ValueError("ends too early")
    return end


def _end(payload: bytes, offset: int) -> int:
    """Return where a value ends, by the length that it states.

    Raises:
        IndexError, ValueError: the value is not complete.
    """
    wanted = 1
    while wanted:
        kind, is_described = payload[offset] >> 4, payload[offset] == 0
        offset += 1
        wanted += 1 if is_described else -1  # a descriptor and a value follow
        if is_described:
            continue
        if kind in _FIXED:
            offset += _FIXED[kind]
        else:
            width = _SIZED[kind] if kind in _SIZED else _unknown()
            offset += width + int.from_bytes(payload[offset : offset + width])
    return _within(payload, offset)


def _sections(payload: bytes) -> Iterator[tuple[int, bytes, int]]:
    """Yield code, value and end of each section, as far as they can be separated."""
    offset = 0
    while payload[offset : offset + 2] == b"\x00\x53":
        start = offset + 3
        try:
            offset = _end(payload, start)
        except (IndexError, ValueError):
            return
        yield payload[start - 1], payload[start:offset], offset


def _elements(value: bytes) -> list[bytes]:
    """Return the elements of a list or map, as far as they can be separated."""
    width = _COMPOUND.get(value[0] >> 4, 0)
    offset = 1 + 2 * width
    count = int.from_bytes(value[1 + width : offset])
    found: list[bytes] = []
    while len(found) < count:
        try:
            end = _end(value, offset)
        except (IndexError, ValueError):
            break
        found.append(value[offset:end])
        offset = end
    return found


def _kept(code: int, fields: list[bytes], is_readable: IsReadable) -> list[bytes]:
    """Return the fields of a list section, with null for each undecodable one."""
    return [
        field
        if is_readable(_section(code, _LIST, [*[_NULL] * place, field]))
        else _NULL
        for place, field in enumerate(fields)
    ]


def _entries(code: int, parts: list[bytes], is_readable: IsReadable) -> list[bytes]:
    """Return the entries of a map section that can be decoded."""
    pairs = zip(parts[::2], parts[1::2], strict=False)  # a last key without value
    kept = [pair for pair in pairs if is_readable(_section(code, _MAP, [*pair]))]
    return [part for pair in kept for part in pair]


def _section(code: int, kind: bytes, elements: list[bytes]) -> bytes:
    return _head(code) + _compound(kind, elements)


def _list(elements: list[bytes]) -> bytes:
    return _compound(_LIST, elements)


def _compound(kind: bytes, elements: list[bytes]) -> bytes:
    body = len(elements).to_bytes(4) + b"".join(elements)
    return kind + len(body).to_bytes(4) + body


def _head(code: int) -> bytes:
    return b"\x00\x53" + bytes([code])


def _short(text: bytes) -> bytes:
    return bytes([len(text)]) + text

"""Which colours a picture has: no library is needed for that.

Source:  www.w3.org/TR/png
"""

import struct
import zlib


def colors(png: bytes) -> set[str]:
    """Return the colours of a picture that Chromium made, such as ``"3f0e40"``."""
    width, _, depth, kind = struct.unpack(">IIBB", png[16:26])
    size = {2: 3, 6: 4}[kind]  # RGB, RGBA
    assert depth == 8
    packed, at = b"", 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        if png[at + 4 : at + 8] == b"IDAT":
            packed += png[at + 8 : at + 8 + length]
        at += length + 12
    raw = zlib.decompress(packed)
    stride = width * size
    found: set[bytes] = set()
    above = bytes(stride)
    for start in range(0, len(raw), stride + 1):
        above = _row(raw[start], raw[start + 1 : start + 1 + stride], above, size)
        found |= {above[each : each + 3] for each in range(0, stride, size)}
    return {each.hex() for each in found}


def _row(how: int, given: bytes, above: bytes, size: int) -> bytes:
    """Undo the filter of a row (9. Filtering)."""
    row = bytearray(given)
    for place in range(len(row)) if how else ():
        left = row[place - size] if place >= size else 0
        corner = above[place - size] if place >= size else 0
        guess = (0, left, above[place], (left + above[place]) // 2)
        near = guess[how] if how < 4 else _nearest(left, above[place], corner)
        row[place] = (row[place] + near) & 0xFF
    return bytes(row)


def _nearest(left: int, above: int, corner: int) -> int:
    line = left + above - corner
    return min((left, above, corner), key=lambda each: abs(line - each))

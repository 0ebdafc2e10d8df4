"""Sizes in bytes, as people write them."""

import pytest

from bridge.foundation.values import Size


@pytest.mark.parametrize(
    ("written", "bytes_"),
    [
        (0, 0),
        (1000, 1000),
        ("1000", 1000),
        ("7B", 7),
        ("500KB", 500_000),
        ("256MB", 256_000_000),
        (" 1 GB ", 10**9),
        ("1KiB", 1024),
        ("2MiB", 2 * 1024**2),
        ("1GiB", 1024**3),
    ],
)
def test_size_is_read(written: object, bytes_: int) -> None:
    assert Size.parse(written) == bytes_


@pytest.mark.parametrize(
    "written", [-1, 1.5, True, None, "", "MB", "1.5MB", "1TB", "1mb", "-1", [], "٣"]
)
def test_what_is_no_size_is_a_fault(written: object) -> None:
    with pytest.raises(ValueError, match="number of bytes"):
        Size.parse(written)

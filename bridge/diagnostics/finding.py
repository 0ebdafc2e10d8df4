"""The result of one check of an installation."""

from typing import Literal

from msgspec import Struct


class Finding(Struct, frozen=True):
    """The result of one check.

    Attributes:
        result: fault = the bridge cannot work like this; warning = it can, but this is
            probably a mistake.
        advice: what to do; "" if the text already says it, or nothing must be done.
    """

    result: Literal["ok", "warning", "fault"]
    text: str
    advice: str = ""

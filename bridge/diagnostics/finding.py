"""The result of one check of an installation."""

from msgspec import Struct


class Finding(Struct, frozen=True, kw_only=True):
    """The result of one check.

    Attributes:
        is_good: False = the bridge cannot work like this.
        is_warning: the bridge can work, but this is probably a mistake.
        advice: what to do; "" if the text already says it, or nothing must be done.
    """

    is_good: bool
    text: str
    is_warning: bool = False
    advice: str = ""

"""Convert values of descriptions to texts, and back.

Each reader raises ValueError. Its text says what is allowed, and continues a sentence
that begins with the name of the field.

Source: the REST pages of Service Bus; isodate and @azure/service-bus, which read these.
"""

import re
from collections.abc import Callable
from datetime import timedelta

_DURATION = re.compile(
    r"P(?=.)(?:(?P<days>\d+)D)?"
    r"(?:T(?=.)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)
# The longest duration of .NET means "for ever". Clients round its last digits, so only
# its days are compared.
FOR_EVER = "P10675199DT2H48M5.4775807S"
_FOR_EVER_DAYS = 10_675_199
_SECOND = timedelta(seconds=1)


def read_flag(text: str) -> bool:
    """Return a boolean."""
    found = {"true": True, "false": False, "1": True, "0": False}.get(text.lower())
    if found is None:
        raise ValueError("is true or false")
    return found


def write_flag(value: object) -> str:
    """Return a boolean as a text."""
    return "true" if value else "false"


def number_within(least: int, most: int) -> Callable[[str], int]:
    """Return a reader of whole numbers."""

    def read(text: str) -> int:
        if not re.fullmatch(r"\d{1,18}", text) or not least <= int(text) <= most:
            raise ValueError(f"is a whole number from {least} to {most}")
        return int(text)

    return read


def duration_within(least: timedelta, most: timedelta) -> Callable[[str], timedelta]:
    """Return a reader of durations."""

    def read(text: str) -> timedelta:
        found = _parse(text)
        if found is None or not least <= found <= most:
            raise ValueError(
                f"is a duration from {write_duration(least)} to {write_duration(most)}"
            )
        return found

    return read


def duration_from(least: timedelta) -> Callable[[str], timedelta | None]:
    """Return a reader of durations that may last for ever, which is read as None."""

    def read(text: str) -> timedelta | None:
        found = _parse(text)
        if found is None or found < least:
            raise ValueError(
                f"is a duration from {write_duration(least)}, such as PT1H, or "
                f"{FOR_EVER}, which is for ever"
            )
        return None if found.days >= _FOR_EVER_DAYS else found

    return read


def write_duration(value: object) -> str:
    """Return a duration as ISO 8601; None is for ever."""
    if not isinstance(value, timedelta):
        return FOR_EVER
    days, rest = divmod(value, timedelta(days=1))
    hours, rest = divmod(rest, timedelta(hours=1))
    minutes, rest = divmod(rest, timedelta(minutes=1))
    seconds = f"{rest / _SECOND:.6f}".rstrip("0").rstrip(".")
    parts = [(hours, "H"), (minutes, "M"), (seconds if rest else 0, "S")]
    time = "".join(f"{number}{unit}" for number, unit in parts if number)
    found = (f"{days}D" if days else "") + (f"T{time}" if time else "")
    return f"P{found or 'T0S'}"


def text_within(most: int) -> Callable[[str], str]:
    """Return a reader of texts."""

    def read(text: str) -> str:
        if len(text) > most:
            raise ValueError(f"is a text of {most} characters at most")
        return text

    return read


def write_text(value: object) -> str:
    """Return a value as a text."""
    return str(value)


def _parse(text: str) -> timedelta | None:
    match = _DURATION.fullmatch(text)
    if match is None:
        return None
    parts = {unit: float(number) for unit, number in match.groupdict("0").items()}
    try:
        return timedelta(**parts)
    except OverflowError:
        return None

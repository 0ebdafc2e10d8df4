"""Text from outside, made harmless for a log and a terminal."""


def printable(text: str) -> str:
    """Escape every line break and control character in a text.

    A text from outside must not fake a log line, nor control the reader's terminal.
    """
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in text
    )

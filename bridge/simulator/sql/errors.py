"""The errors of SQL filters and actions."""


class SqlSyntaxError(ValueError):
    """The text of a filter or action is invalid.

    Attributes:
        what: the error, without its position.
        position: the number of the character, from 1.
    """

    def __init__(self, what: str, position: int) -> None:
        super().__init__(f"{what}, at character {position}")
        self.what = what
        self.position = position


class EvaluationError(Exception):
    """A filter or action cannot be applied to a message, because of its values."""

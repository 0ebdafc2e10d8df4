"""What can be wrong with a SQL filter or action."""


class SqlSyntaxError(ValueError):
    """A filter or action cannot be read.

    Attributes:
        what: what is wrong, without the place.
        position: the number of the character, from 1.
    """

    def __init__(self, what: str, position: int) -> None:
        super().__init__(f"{what}, at character {position}")
        self.what = what
        self.position = position


class EvaluationError(Exception):
    """A filter or action cannot be applied to a message: its values do not fit."""

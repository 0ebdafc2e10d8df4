"""The figures of releases, in a small file that is written by hand, never by CI."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from tests.bench.figures import Figure

FILE: Final = Path(__file__).with_name("history.json")


@dataclass(frozen=True, slots=True)
class History:
    """What was measured before, by version in the order of writing.

    Attributes:
        versions: version to figure to ``{"ratio": …, "noise": …}``.
    """

    versions: dict[str, dict[str, dict[str, float]]]
    path: Path = FILE

    @classmethod
    def read(cls, path: Path = FILE) -> Self:
        """Read the file; none is an empty history."""
        text = path.read_text() if path.exists() else "{}"
        return cls(json.loads(text), path)

    def compared(self, figure: Figure) -> str:
        """Return the row of a figure; ``WORSE`` where the last release was better."""
        before = self._last(figure.what)
        if before is None or figure.is_too_noisy:
            return str(figure)
        is_worse = figure.worse_than(before["ratio"], before["noise"])
        word = "WORSE than" if is_worse else "was"
        return f"{figure}  {word} {before['ratio']:.2f}"

    def keep(self, version: str, figures: list[Figure]) -> None:
        """Write the figures of a version, beside those that it already has."""
        known: dict[str, Any] = self.versions.setdefault(version, {})
        for one in figures:
            if not one.is_too_noisy:
                known[one.what] = {
                    "ratio": round(one.ratio, 3),
                    "noise": round(one.noise, 3),
                }
        self.path.write_text(json.dumps(self.versions, indent=2) + "\n")

    def _last(self, what: str) -> dict[str, float] | None:
        for figures in reversed(self.versions.values()):
            if what in figures:
                return figures[what]
        return None

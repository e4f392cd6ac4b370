"""What a job did, for people and for programs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Cell = str | int | float | None


@dataclass(frozen=True)
class Summary:
    """What one run of a job did, or with dry_run would do: a table, and remarks."""

    job: str
    id: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    dry_run: bool = False
    repeated: bool = False  # the same run had taken effect before, so that this one did nothing
    notes: Sequence[str] = field(default_factory=tuple)

    def as_json(self) -> dict[str, Any]:
        """The same as plain values."""
        return {
            "job": self.job,
            "id": self.id,
            "dry_run": self.dry_run,
            "repeated": self.repeated,
            "rows": [dict(zip(self.columns, row, strict=True)) for row in self.rows],
            "notes": list(self.notes),
        }

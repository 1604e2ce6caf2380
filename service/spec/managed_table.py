"""What the table of a managed result says of itself, so that whoever has the table can read the result.

The table is a log: each mini-batch appends the rows that it changed, in files of a partition of its own, and now and
then all of it is rewritten as one row for each key. The description stands in the table's configuration.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from pydantic import TypeAdapter

from service.spec.final_level import FinalLevel
from service.spec.types import Field

DESCRIPTION = "evenkeel.result"
"""The key of the description in the configuration of the table."""

FORMAT = 1
"""The newest format of the description that this release writes and reads."""


@dataclass(frozen=True)
class ManagedTable:
    """How the rows of a managed table become a result.

    `app` names the history of mini-batches. `columns` are those of its files, in order; `batch` is the partition
    column besides, which has the number of the mini-batch. Of rows with equal `keys` (and equal `final.parts`, where
    `final` is given), NULL being equal to NULL, the newest one counts; `()` is a result of one row, None one in which
    every row counts. `output` is what readers see. `of_nothing` is the one row of the result as long as there is no
    other, as JSON values in the order of `output`: what an aggregate without GROUP BY answers of no rows.
    """

    app: str
    columns: tuple[Field, ...]
    output: tuple[Field, ...]
    keys: tuple[str, ...] | None
    final: FinalLevel | None = None
    of_nothing: tuple[bool | int | float | str | None, ...] | None = None
    batch: str = "_batch"
    format: int = FORMAT

    @property
    def identity(self) -> tuple[str, ...] | None:
        """The columns by which a newer row replaces an older one."""
        return self.keys if self.keys is None or self.final is None else (*self.keys, *self.final.parts)

    @property
    def compacted(self) -> str:
        """The name under which the table remembers the last mini-batch that was rewritten with the others."""
        return f"{self.app}/compacted"

    @property
    def fence(self) -> str:
        """The name under which the table remembers the newest fencing token."""
        return f"{self.app}/fence"

    def to_json(self) -> str:
        """The description as text."""
        return _adapter().dump_json(self).decode()


def described(text: str) -> ManagedTable:
    """The description in `text`. Raises ValueError where it is none, or one of a newer release."""
    found = _adapter().validate_json(text)
    if found.format > FORMAT:
        raise ValueError(f"The table was written by a newer release (format {found.format}, known {FORMAT}).")
    return found


@cache
def _adapter() -> TypeAdapter[ManagedTable]:
    return TypeAdapter(ManagedTable)

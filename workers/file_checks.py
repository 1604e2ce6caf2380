"""Checks, after a run, that it read the files that its planning found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress

from service.datasets.changes import changed_files
from service.datasets.files import TableFiles, swapped
from service.datasets.stores import StoreUnavailableError
from service.spec.errors import SpecError
from workers.attempt import Attempt
from workers.engine.plan.nodes import Node
from workers.engine.spark.sources import TableInput, scans_of


@contextmanager
def same_files(tables: Mapping[str, TableInput], plan: Node, attempt: Attempt) -> Iterator[None]:
    """Runs the plan inside. Raises SpecError `path_outside_data_roots` where a file has become a link, and
    `files_changed` where a file that the plan reads was written or removed since it was found: in the place of an error
    from inside too, since Spark's error may quote the file. Raises StoreUnavailableError where a store does not answer
    after a run that succeeded.
    """
    is_done = False
    try:
        yield
        is_done = True
    finally:
        problem = next(filter(None, (swapped(table.files) for table in tables.values())), None)
        # A run that was told to stop ends with that reason; it does not wait for a store.
        if problem is None and (is_done or attempt.reason is None):
            read = sorted({scan.table for scan in scans_of(plan)})
            changes = (_changed_files(tables[name].files, is_done=is_done) for name in read)
            problem = next(filter(None, changes), None)
        if problem is not None:
            raise problem from None


def _changed_files(files: TableFiles, *, is_done: bool) -> SpecError | None:
    # The error of a run that failed counts, not that of a store that does not answer after it.
    with nullcontext() if is_done else suppress(StoreUnavailableError):
        return changed_files(files)
    return None

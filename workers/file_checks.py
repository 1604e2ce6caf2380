"""Checks, after a run, that it read the files that its planning found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from service.datasets.changes import changed_files
from service.datasets.files import swapped
from workers.attempt import Attempt
from workers.engine.plan.nodes import Node
from workers.engine.spark.sources import TableInput, scans_of


@contextmanager
def same_files(tables: Mapping[str, TableInput], plan: Node, attempt: Attempt) -> Iterator[None]:
    """Runs the plan inside. Raises SpecError `path_outside_data_roots` where a file has become a link, and
    `files_changed` where a file that the plan reads was written or removed since it was found: in the place of an error
    from inside too, since Spark's error may quote the file. Raises StoreUnavailableError where a store does not answer.
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
            problem = next(filter(None, (changed_files(tables[name].files) for name in read)), None)
        if problem is not None:
            raise problem from None

"""Whether a plan of ours and Spark's own are the same tree of spots over the same tables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from service.spec.reports import OperatorMetrics
from workers.engine.plan.nodes import Join, Scan
from workers.engine.stats.spots import Kind, Numbered, Spot

Files = Mapping[str, Sequence[str]]
"""Paths of a table's files, by the table's name."""


def agree(ours: Spot[Numbered], sparks: Spot[OperatorMetrics], files: Files) -> bool:
    """Whether both are the same tree of kinds over the same tables."""
    scans = [each.members[0].node for each in ours.walk() if each.kind is Kind.SCAN]
    tables = Counter(each.table for each in scans if isinstance(each, Scan))
    joins = [each.members[0].node for each in ours.walk() if each.kind is Kind.JOIN]
    # Joins without keys are put into another order, which shows by their tables alone.
    if any(isinstance(each, Join) and not each.keys for each in joins) and tables.total() > len(tables):
        return False
    return _are_alike(ours, sparks, files, len(tables) > 1)


def _are_alike(ours: Spot[Numbered], sparks: Spot[OperatorMetrics], files: Files, several: bool) -> bool:
    if ours.kind is not sparks.kind or ours.kind is Kind.OTHER or len(ours.inputs) != len(sparks.inputs):
        return False
    made = ours.members[0].node
    if isinstance(made, Scan) and not _reads(made, sparks.members[0], files.get(made.table, ()), several):
        return False
    return all(_are_alike(one, other, files, several) for one, other in zip(ours.inputs, sparks.inputs, strict=True))


_LOCATION = re.compile(r"Location: \w+ ?\((?:\d+) paths\)\[(.*?)(\.\.\.|, |\])")
_COLUMNS = re.compile(r"^\S+ \w+ \[(.*?)\] Batched")
_COLUMN = re.compile(r"(?:^|,)([^#,]+)#\d+L?(?=,|$)")
_SCHEME = re.compile(r"^[a-z0-9]+:/+|^/+")


def _reads(node: Scan, operator: OperatorMetrics, paths: Sequence[str], several: bool) -> bool:
    """Whether an operator may be the scan of this table: it reads no other columns, and no other files."""
    columns = _COLUMNS.search(operator.detail)
    if columns is not None:
        read = {name.lower() for name in _COLUMN.findall(columns[1])}
        if node.columns and not read <= {name.lower() for _, name in node.columns}:
            return False
    location = _LOCATION.search(operator.detail)
    if location is None or not paths:
        return not several
    shown, is_cut = _SCHEME.sub("", location[1]), location[2] == "..."
    known = [_SCHEME.sub("", path) for path in paths]
    return any(path.startswith(shown) if is_cut else path == shown for path in known)

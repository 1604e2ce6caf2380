"""The newest row of each key, from a base and a log, against a dict."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.results.merge import merged, newest_of

SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("number", pa.decimal128(10, 1)),
        ("nested", pa.struct([("a", pa.int64()), ("b", pa.list_(pa.int8()))])),
        ("value", pa.int64()),
    ]
)
NESTED = st.none() | st.builds(
    lambda a, b: {"a": a, "b": b}, st.sampled_from([None, 1]), st.sampled_from([None, [], [1, None]])
)
ROWS = st.lists(
    st.tuples(st.sampled_from([None, "", "a"]), st.sampled_from([None, Decimal("1.0"), Decimal("2.0")]), NESTED),
    max_size=12,
)


def table(keys: list[tuple[Any, ...]], first: int) -> pa.Table:
    rows = [(*key, first + index) for index, key in enumerate(keys)]
    return pa.Table.from_arrays(
        [pa.array([row[index] for row in rows], field.type) for index, field in enumerate(SCHEMA)], schema=SCHEMA
    )


@pytest.mark.not_quick
@settings(max_examples=150)
@given(base=ROWS, log=ROWS, size=st.integers(1, 5), width=st.integers(0, 3))
def test_as_in_a_dict(base: list[tuple[Any, ...]], log: list[tuple[Any, ...]], size: int, width: int) -> None:
    keys = SCHEMA.names[:width]
    old = newest_of(table(base, 0), keys)
    model: dict[str, dict[str, Any]] = {}
    for row in (*old.to_pylist(), *table(log, 100).to_pylist()):
        model[repr([row[name] for name in keys])] = row
    batches = old.to_batches(max_chunksize=size)
    found = [row for part in merged(batches, table(log, 100), keys) for row in part.to_pylist()]
    # The base keeps its order.
    assert found[: old.num_rows] == list(model.values())[: old.num_rows]
    assert sorted(found, key=repr) == sorted(model.values(), key=repr)


def test_the_order_of_new_keys_is_that_of_their_newest_rows() -> None:
    log = pa.table({"k": [3, 1, 2, 3], "n": [0, 1, 2, 3]})
    assert pa.concat_tables(merged([], log, ["k"])).to_pydict() == {"k": [1, 2, 3], "n": [1, 2, 3]}


def test_texts_of_more_than_an_array_holds_are_told_apart_by_wide_offsets() -> None:
    views = pa.table({"k": pa.array(["a", "b"], pa.large_string()), "n": [1, 2]})
    assert newest_of(views, ["k"]).num_rows == 2

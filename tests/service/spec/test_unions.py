"""Columns of a union that have no common type: what the message offers is what works."""

from __future__ import annotations

import pytest

from service.spec.compile import compile_job
from service.spec.errors import SpecError
from service.spec.job import JobSpec
from service.spec.types import BIGINT, DATE, INT, Field, Schema, array

SCHEMA = Schema((Field("i", INT), Field("d", DATE), Field("few", array(INT)), Field("many", array(BIGINT))))


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        ("i", "d", "is INT in one query and DATE in another: cast one of them."),
        ("few", "many", "is ARRAY<INT> in one query and ARRAY<BIGINT> in another: give it one type in the files."),
    ],
)
def test_columns_without_a_common_type_are_refused_with_what_works(one: str, other: str, words: str) -> None:
    job = {"tables": {"t": {"format": "parquet", "path": "t"}}}
    sql = f"SELECT {one} AS x FROM t UNION ALL SELECT {other} FROM t"
    with pytest.raises(SpecError) as caught:
        compile_job(JobSpec.model_validate({**job, "sql": sql}), {"t": SCHEMA})
    assert caught.value.code == "type_mismatch"
    assert words in caught.value.issues[0].detail

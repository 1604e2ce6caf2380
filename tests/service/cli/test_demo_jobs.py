"""The demo's comparison of results with pandas."""

from __future__ import annotations

import pandas as pd
import pytest

from service.cli.demo_data import JOBS, Comparison, DemoJob, compare
from service.contract.job import JobSpec

EXPECTED = pd.DataFrame({"k": ["b", "a", None], "n": [2, 1, 2**60 + 1], "x": [0.1, None, 3.0]})


def test_order_of_rows_is_ignored() -> None:
    assert compare(EXPECTED.iloc[::-1], EXPECTED, "k") == Comparison(9, ())


def test_floats_are_compared_with_a_tolerance() -> None:
    assert compare(EXPECTED.assign(x=EXPECTED["x"] * (1 + 1e-12)), EXPECTED, "k").differences == ()
    assert compare(EXPECTED.assign(x=EXPECTED["x"] * (1 + 1e-7)), EXPECTED, "k").differences != ()


@pytest.mark.parametrize(
    ("actual", "difference"),
    [
        (EXPECTED.assign(n=[2, 3, 2**60 + 1]), "n of a is 3 instead of 1"),
        (EXPECTED.assign(n=[2, 1, 2**60]), f"n of None is {2**60} instead of {2**60 + 1}"),
        (EXPECTED.assign(x=[0.1, 0.0, 3.0]), "x of a is 0.0 instead of nan"),
        (EXPECTED.replace({"k": {"a": "c"}}), "k of b is c instead of b"),
        (EXPECTED.head(2), "2 rows instead of 3"),
        (EXPECTED[["k", "x", "n"]], "columns are ['k', 'x', 'n'] instead of ['k', 'n', 'x']"),
    ],
)
def test_differences_are_described(actual: pd.DataFrame, difference: str) -> None:
    assert difference in "; ".join(compare(actual, EXPECTED, "k").differences)


@pytest.mark.parametrize("job", JOBS, ids=lambda job: str(job.title))
def test_every_job_is_a_valid_request(job: DemoJob) -> None:
    assert JobSpec.model_validate(job.spec()).sql == job.sql

"""The query that a profile is found out by."""

from __future__ import annotations

import pytest

from service.contract.problems import Issue
from service.contract.profiles import ProfileRequest
from service.jobs.explain_job import build_profile_job, to_request_issue

TABLE = {"format": "parquet", "path": "flights/"}


def request(*keys: tuple[str, ...]) -> ProfileRequest:
    return ProfileRequest.model_validate({"table": TABLE, "keys": keys})


def test_each_key_is_a_branch_with_a_name_of_its_own() -> None:
    spec = build_profile_job(request(("tailnum",), ("origin", "a `b`")))
    assert spec.query is not None
    queries = spec.query.source.queries  # type: ignore[union-attr]
    groups = [[key.expression for key in query.group_by] for query in queries]
    assert groups == [["k0.`tailnum`"], ["k1.`origin`", "k1.`a ``b```"]]


@pytest.mark.parametrize(
    ("pointer", "posted"),
    [
        ("/query/group_by/0/expression", "/keys/0/0"),
        ("/query/source/queries/3/group_by/1", "/keys/3/1"),
        ("/query/source/queries/2/source", "/keys/2"),
        ("/tables/t/path", "/table/path"),
        (None, None),
    ],
)
def test_an_issue_is_told_of_what_was_posted(pointer: str | None, posted: str | None) -> None:
    issue = Issue(
        code="unknown_column",
        detail="There is no column k3.`x`; did you mean k3.`y`?",
        pointer=pointer,
        suggestions=("k3.`y`",),
    )
    assert to_request_issue(issue).pointer == posted
    if posted and posted.startswith("/keys"):
        assert to_request_issue(issue).detail == "There is no column `x`; did you mean `y`?"
        assert to_request_issue(issue).suggestions == ("`y`",)

"""`SpecError`, `Problem`, and suggestions of similar names."""

from __future__ import annotations

import pytest

from service.contract.problems import Issue, SpecError, did_you_mean, nearest_names, problem_of_spec_error


def test_the_first_issue_gives_the_code() -> None:
    error = SpecError([Issue(code="a", detail="one."), Issue(code="b", detail="two.")])
    assert error.code == "a"
    assert str(error) == "one.; two."
    with pytest.raises(ValueError, match="at least one"):
        SpecError([])


def test_nearest_names_ignore_case_and_keep_spelling() -> None:
    assert nearest_names("CATEGRY", ["Category", "uid", "amount"]) == ("Category",)
    assert nearest_names("xyz", ["Category", "uid"]) == ()
    assert nearest_names("rank", ["tan"]) == ("tan",)
    assert nearest_names("rank", ["tan"], min_similarity=0.65) == ()
    assert len(nearest_names("col", [f"col{number}" for number in range(9)])) == 3


def test_suggestions_are_appended_to_a_sentence() -> None:
    assert did_you_mean(["a", "b"]) == " Did you mean a, b?"
    assert did_you_mean([]) == ""


def test_a_problem_has_every_issue() -> None:
    error = SpecError.of("unknown_column", "There is no column x.", pointer="/sql", line=1, column=8, suggestions=["y"])
    problem = problem_of_spec_error(error)
    assert (problem.type, problem.title, problem.status) == ("/problems/unknown_column", "Unknown column", 422)
    assert problem.errors == error.issues

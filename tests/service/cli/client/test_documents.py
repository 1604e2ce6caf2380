"""YAML and JSON say what their writers meant, and mistakes are pointed at."""

from __future__ import annotations

import pytest

from service.cli.client.documents import parsed_document
from service.cli.errors import CliError, ExitCode

YAML = """
name: nightly
tables: {f: {format: parquet, path: flights/}}
on: yes
since: 2013-01-31
at: 12:30
id: 007
n: 16
x: 1.5e3
none: ~
truth: true
sql: |
  SELECT 1
  FROM f
"""


def test_words_are_words() -> None:
    assert parsed_document(YAML, "job.yaml") == {
        "name": "nightly",
        "tables": {"f": {"format": "parquet", "path": "flights/"}},
        "on": "yes",
        "since": "2013-01-31",
        "at": "12:30",
        "id": "007",
        "n": 16,
        "x": 1500.0,
        "none": None,
        "truth": True,
        "sql": "SELECT 1\nFROM f\n",
    }


@pytest.mark.parametrize("text", ['{"a": [1, "x"]}', "{a: [1, x]}", '{\n\t"a": [1,\n\t"x"]}'])
def test_json_and_what_looks_like_it(text: str) -> None:
    assert parsed_document(text, "standard input") == {"a": [1, "x"]}


@pytest.mark.parametrize(
    ("text", "label", "place"),
    [
        ("a: 1\nb: [1\nc: 2\n", "job.yaml", "job.yaml:3:2"),
        ('{"a": 1,\n "b" 2}', "job.json", "job.json:2:6"),
        ("a: 1\na: 2\n", "job.yaml", "job.yaml:2:1"),
        ("x: !!python/object:os.system {}\n", "job.yaml", "job.yaml:1:4"),
    ],
)
def test_a_mistake_is_pointed_at(text: str, label: str, place: str) -> None:
    with pytest.raises(CliError, match=f"{label} cannot be read") as raised:
        parsed_document(text, label)
    assert raised.value.code == ExitCode.USAGE
    assert raised.value.advice.splitlines()[0] == place
    assert raised.value.advice.splitlines()[2].strip() == "^"


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', "a: {b: 1, b: 2}"])
def test_a_name_stands_once(text: str) -> None:
    with pytest.raises(CliError, match="twice"):
        parsed_document(text, "job")


@pytest.mark.parametrize("text", ["a: !!timestamp x", "a: !!int x", "a: !!python/name:os.system x"])
def test_a_tag_that_cannot_be_meant(text: str) -> None:
    with pytest.raises(CliError) as raised:
        parsed_document(text, "job.yaml")
    assert raised.value.code == ExitCode.USAGE

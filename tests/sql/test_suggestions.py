"""What a message suggests is accepted: the words of the message are compiled, not a copy of them.

`suggestions.test` has the cases, and describes their form.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from service.contract.job import JobSpec
from service.contract.problems import SpecError
from service.sql.compile import compile_job
from service.sql.types.data_types import (
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    STRING,
    TIMESTAMP,
    DataType,
    Field,
    Schema,
    TypeName,
)

_FILE = Path(__file__).with_name("suggestions.test")
_COLUMNS = {
    **dict.fromkeys("xy", DOUBLE),
    **dict.fromkeys("kn", INT),
    **dict.fromkeys(("s", "text", "part"), STRING),
    **dict.fromkeys("tab", TIMESTAMP),
    "d": DATE,
    "condition": BOOLEAN,
    "numbers": DataType(TypeName.ARRAY, parts=(INT,)),
    "days": DataType(TypeName.ARRAY, parts=(DATE,)),
}
_SCHEMA = Schema(tuple(Field(name, type_) for name, type_ in _COLUMNS.items()))


@dataclass
class Suggestion:
    """A refused query, what its message suggests, and the query with these words, in which names are replaced."""

    refused: str
    words: str
    template: str = "SELECT {} AS v FROM t"
    names: dict[str, str] = field(default_factory=lambda: {"p": "0.5"})

    @property
    def accepted(self) -> str:
        """The query that must be accepted."""
        words = re.sub(r"\b\w+\b(?!\()", lambda name: self.names.get(name[0], name[0]), self.words)
        return self.template.replace("{}", words)


def _cases() -> list[Suggestion]:
    cases = []
    text = "\n".join(line for line in _FILE.read_text().splitlines() if not line.startswith("#"))
    for block in text.strip().split("\n\n"):
        refused, words, *rest = block.splitlines()
        case = Suggestion(refused, words.removeprefix("=> "))
        for line in rest:
            if line.startswith(">> "):
                case.template = line.removeprefix(">> ")
            else:
                _, name, _, value = line.split()
                case.names[name] = value
        cases.append(case)
    return cases


def compile_query(sql: str) -> None:
    tables = {name: {"path": name, "format": "parquet"} for name in ("t", "u")}
    compile_job(JobSpec.model_validate({"sql": sql, "tables": tables}), {"t": _SCHEMA, "u": _SCHEMA})


@pytest.mark.parametrize("case", _cases(), ids=lambda case: f"{case.refused} | {case.words}")
def test_suggestion(case: Suggestion) -> None:
    with pytest.raises(SpecError) as refused:
        compile_query(case.refused)
    assert case.words in str(refused.value)
    compile_query(case.accepted)

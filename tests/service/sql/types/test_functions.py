"""The table of functions against Spark: every function over every type in every place."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from service.sql.expressions.compile_expression import TableScope
from service.sql.expressions.nodes import Expression, Name, Negation, Null, Number, String
from service.sql.types.document_functions import DOCUMENT_GROUPS, SKETCH_GROUPS
from service.sql.types.functions import FUNCTIONS, digits_are_bounded, padding_is_bounded
from service.sql.types.literal_arguments import refused_literal, widths_in
from service.sql.types.nested_functions import NESTED_GROUPS
from service.sql.types.signatures import Function, Kind
from tests.service.sql.conftest import COLUMNS, TypesInSpark
from tests.service.sql.types.test_inference import check

SAMPLES = {
    Kind.ANY: "s",
    Kind.VALUE: "s",
    Kind.ALL: "s",
    Kind.NUMBER: "i",
    Kind.TIME: "dt",
    Kind.BOOLEAN: "bo",
    Kind.BYTES: "s",
    Kind.DAYS: "i",
    Kind.SECONDS: "i",
    Kind.FORMAT: "s",
    Kind.INTEGER: "i",
    Kind.BITS: "i",
    Kind.DAY: "dt",
    Kind.INSTANT: "ts",
    Kind.PRINTABLE: "i",
    Kind.SKETCH: "bi",
}
# These want a literal, or arguments of one type.
FIRST = {
    "lpad": ["s", "5", "'x'"],
    "rpad": ["s", "5", "'x'"],
    "regexp_extract": ["s", "'x'"],
    "floor": ["dc"],
    "ceil": ["dc"],
    "ceiling": ["dc"],
    "round": ["dc", "1"],
    "bround": ["dc", "1"],
    **{key: ["s", "'x'"] for key in ("regexp_count", "regexp_instr", "regexp_substr")},
    "repeat": ["s", "5"],
    "space": ["5"],
    **{key: ["'%s %s %s'"] for key in ("format_string", "printf")},
    "format_number": ["d", "2"],
    **{key: ["i", "'999'"] for key in ("to_char", "to_varchar")},
    **{key: ["s", "'999.99'"] for key in ("to_number", "try_to_number")},
    **{key: ["s", "'hex'"] for key in ("to_binary", "try_to_binary")},
    "time_bucket": ["INTERVAL '1' HOUR"],
    **{key: ["s", "'a/b'"] for key in DOCUMENT_GROUPS["XML and CSV"] if key.startswith("xpath")},
    "from_csv": ["s", "'a INT'"],
    "schema_of_csv": ["'1,a'"],
    "hll_union": ["bi", "bi", "TRUE"],
    "theta_union": ["bi", "bi", "12"],
    **{
        key: ["bi", "0.5"]
        for key in SKETCH_GROUPS["sketches"]
        if key.startswith(("kll_sketch_get_q", "kll_sketch_get_r"))
    },
    "mask": ["s", "'X'", "'x'", "'n'", "NULL"],
    "regexp_replace": ["s", "'x'", "s", "2"],
    **{key: ["DAY"] for key in ("timestampadd", "timestampdiff")},
    **{key: ["i", "i"] for key in ("try_add", "try_subtract", "try_multiply", "try_divide", "try_mod")},
}


def calls(function: Function) -> Iterator[str]:
    """Calls with the fewest and the most arguments, each type once in each place."""
    sizes = {function.least, function.most if function.most is not None else function.least + 2}
    for size in sorted(sizes):
        base = FIRST.get(function.name, [])[:size]
        base += [SAMPLES[function.kind(index)] for index in range(len(base), size)]
        yield f"{function.name}({', '.join(base)})"
        for place in range(size):
            if base[place] not in COLUMNS:
                continue
            for name in COLUMNS:
                yield f"{function.name}({', '.join([*base[:place], name, *base[place + 1 :]])})"


# tests/service/sql/types/test_nested_types.py checks the others.
_OTHERS = {
    *DOCUMENT_GROUPS["vectors"],
    "to_csv",
    "from_csv",
    *(name for group in NESTED_GROUPS.values() for name in group),
}
ATOMIC = [each for each in FUNCTIONS.values() if each.name not in _OTHERS]


@pytest.mark.spark
@pytest.mark.parametrize("start", range(0, len(ATOMIC), 12))
def test_result_types_are_those_of_spark(start: int, every_type: TableScope, types_in_spark: TypesInSpark) -> None:
    functions = ATOMIC[start : start + 12]
    check([call for function in functions for call in calls(function)], every_type, types_in_spark)


@pytest.mark.spark
def test_rounding_follows_the_literal(every_type: TableScope, types_in_spark: TypesInSpark) -> None:
    texts = [f"round({name}, {digits})" for name in ("dc", "dw", "i", "d", "1.005") for digits in (-3, -1, 0, 1, 2, 5)]
    check([*texts, "round(dc)", "round(dw)", "ceil(dw)", "floor(1.5)", "bround(dc, i)"], every_type, types_in_spark)


def test_arity_is_told_in_words() -> None:
    assert FUNCTIONS["upper"].arity == "1"
    assert FUNCTIONS["round"].arity == "1 to 2"
    assert FUNCTIONS["coalesce"].arity == "at least 1"
    assert FUNCTIONS["round"].accepts(2)
    assert not FUNCTIONS["round"].accepts(3)


def test_names_are_lower_case_and_none_reaches_outside() -> None:
    assert all(name == name.lower() == function.name for name, function in FUNCTIONS.items())
    outside = {"java_method", "reflect", "input_file_name", "rand", "uuid", "shuffle"}
    assert not outside & FUNCTIONS.keys()


@pytest.mark.parametrize(
    ("length", "bounded"),
    [
        (Number("10"), True),
        (Number("65536"), True),
        (Number("65537"), False),
        (Number("99999999999"), False),
        (Negation(Number("1")), True),
        (Name(None, "n"), False),
    ],
)
def test_padding_needs_a_bearable_literal(length: Number | Negation | Name, bounded: bool) -> None:
    arguments = (Name(None, "s"), length, Name(None, "x"))
    assert padding_is_bounded("lpad", arguments) is bounded
    assert padding_is_bounded("upper", arguments)


@pytest.mark.withstands(
    "rounding to an extreme number of digits",
    kind="attack",
    how="`round(1.5, 2147483647)` and others, which Spark would expand while planning",
    times=7,
    guaranteed="422 `type_mismatch`, before anything runs",
)
@pytest.mark.parametrize(
    ("digits", "bounded"),
    [
        (Number("2"), True),
        (Negation(Number("38")), True),
        (Number("39"), False),
        (Negation(Number("39")), False),
        (Number("2147483647"), False),
        (Name(None, "n"), False),
        (Null(), True),
    ],
)
@pytest.mark.parametrize("function", ["round", "bround", "floor", "ceil", "ceiling"])
def test_rounding_needs_a_bearable_literal(function: str, digits: Expression, bounded: bool) -> None:
    value = Name(None, "v")
    assert digits_are_bounded(function, (value, digits)) is bounded
    assert digits_are_bounded(function, (value,))
    assert digits_are_bounded("log", (value, digits))


@pytest.mark.withstands(
    "text functions that repeat or pad their arguments",
    kind="attack",
    how="`repeat(s, 2147483647)`, `space(999999999)`, `format_string('%999999999d', n)`, "
    "`format_number(x, 1000000)` and others, which would fill the memory",
    times=11,
    guaranteed="422 `type_mismatch`, before anything runs",
)
@pytest.mark.parametrize(
    ("name", "arguments", "refused"),
    [
        ("repeat", (Name(None, "s"), Number("65536")), False),
        ("repeat", (Name(None, "s"), Number("2147483647")), True),
        ("repeat", (Name(None, "s"), Name(None, "n")), True),
        ("space", (Number("999999999"),), True),
        ("format_string", (String("%999999999d"), Name(None, "n")), True),
        ("format_string", (Name(None, "s"), Name(None, "n")), True),
        ("printf", (String("%5.2f %1$s %%"), Name(None, "n")), False),
        ("format_number", (Name(None, "x"), Number("1000000")), True),
        ("to_number", (Name(None, "s"), String("text")), True),
        ("mask", (Name(None, "s"), String("XX")), True),
        ("regexp_replace", (Name(None, "s"), String("a"), String("b"), Number("0")), True),
    ],
)
def test_lengths_and_formats_are_bounded_literals(name: str, arguments: tuple[Expression, ...], refused: bool) -> None:
    assert (refused_literal(name, (None, None), arguments) is not None) is refused


def test_widths_of_a_format_are_added() -> None:
    assert widths_in("%5.2f and %-10s and %%") == 17
    assert widths_in("%") is None
    assert widths_in("%101d") is None

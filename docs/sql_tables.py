"""Tables of the SQL that is supported, with types of arguments and results, and of what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from sqlglot import exp

from docs.markdown import code, codes, table
from service.contract.query import AggregateFunction
from service.sql.builtins import FunctionClass, by_class
from service.sql.expressions.calls import SYNONYMS, WITHIN_GROUP
from service.sql.expressions.function_forms import FORMS, MANY
from service.sql.expressions.window_functions import WINDOW_FUNCTIONS
from service.sql.refusals import (
    ARITHMETIC,
    CLAUSE_HINTS,
    CLAUSES,
    COMPARISONS,
    CONSTRUCTS,
    EXTRACT_PARTS,
    HINTS,
    INTERVAL_UNITS,
    LIKES,
    TYPES,
    UNSUPPORTED_AGGREGATES,
    UNSUPPORTED_KINDS,
    UNSUPPORTED_SCALARS,
)
from service.sql.types.aggregates import ORDERED, result_type, takes
from service.sql.types.data_types import (
    BIGINT,
    BINARY,
    DATE,
    DOUBLE,
    INT,
    STRING,
    TIMESTAMP,
    DataType,
    Incompatible,
    TypeName,
    arithmetic,
    decimal,
)
from service.sql.types.functions import FUNCTIONS, GROUPS
from service.sql.types.signatures import Function, Kind

KINDS: Mapping[Kind, str] = {
    Kind.ANY: "any",
    Kind.VALUE: "value",
    Kind.ALL: "anything",
    Kind.ARRAY: "array",
    Kind.MAP: "map",
    Kind.COLLECTION: "array or map",
    Kind.DOCUMENT: "nested",
    Kind.LAMBDA: "lambda",
    Kind.NUMBER: "number",
    Kind.TIME: "time",
    Kind.BOOLEAN: "boolean",
    Kind.DAYS: "days",
    Kind.SECONDS: "seconds",
    Kind.FORMAT: "format",
    Kind.BYTES: "bytes",
    Kind.INTEGER: "integer",
    Kind.BITS: "bits",
    Kind.DAY: "day",
    Kind.INSTANT: "timestamp",
    Kind.PRINTABLE: "printable",
    Kind.SKETCH: "sketch",
}
"""The names of the kinds of arguments in signatures."""

_DESCRIBED = {
    Kind.ANY: "any type but ARRAY, MAP and STRUCT",
    Kind.VALUE: "any type",
    Kind.ALL: "any type, also one that only Spark has",
    Kind.LAMBDA: "a lambda, such as `x -> x + 1`",
}

_PAIRS: tuple[tuple[DataType, DataType], ...] = (
    (INT, BIGINT),
    (INT, decimal(10, 2)),
    (decimal(10, 2), decimal(10, 2)),
    (INT, DOUBLE),
    (INT, STRING),
    (STRING, STRING),
    (DATE, INT),
    (DATE, DATE),
)
_ARGUMENTS: tuple[DataType, ...] = (INT, decimal(10, 2), DOUBLE, STRING, DATE, TIMESTAMP, BINARY)
_REFUSED = "refused"
_TESTS = (
    ("`x IS [NOT] NULL`, `x IS [NOT] DISTINCT FROM y`", "any"),
    ("`x IS [NOT] TRUE`, `x IS [NOT] FALSE`", "a condition"),
    ("`x [NOT] IN (a, b)`", "a list of values"),
    ("`x [NOT] BETWEEN a AND b`", "comparable values"),
)


def types_table() -> str:
    """Returns the table of types, with their spellings."""
    spellings: dict[str, list[str]] = {}
    for spelling, name in TYPES.items():
        spellings.setdefault(name.value, []).append(_SPELLINGS.get(spelling, spelling.value))
    return table(("Type", "Written as"), [(code(name), codes(known)) for name, known in spellings.items()])


_SPELLINGS = {
    exp.DType.TEXT: "STRING",
    exp.DType.TIMESTAMPTZ: "TIMESTAMP",
    exp.DType.TIMESTAMPLTZ: "TIMESTAMP_LTZ",
    exp.DType.TIMESTAMPNTZ: "TIMESTAMP_NTZ",
    exp.DType.DECIMAL: "DECIMAL(p,s)",
}


def arithmetic_table() -> str:
    """Returns the result types of the arithmetic operators, by the types of their operands."""
    operators = [operator for operator in ARITHMETIC.values() if operator != "||"]
    header = ("Operands", *map(code, operators))
    rows = [
        (f"{left}, {right}", *(_result_of_operator(operator, left, right) for operator in operators))
        for left, right in _PAIRS
    ]
    return table(header, rows)


def conditions_table() -> str:
    """Returns the table of the operators whose result is a BOOLEAN."""
    rows = [
        (codes(COMPARISONS.values()), "values that Spark can compare; `<=>` is true for two NULLs"),
        *((f"`x [NOT] {operator} pattern`", _pattern(operator)) for operator in LIKES.values()),
        *_TESTS,
        ("`AND`, `OR`, `NOT`", "conditions"),
    ]
    return table(("Operator", "Operands"), rows)


def functions_table(group: Mapping[str, Function]) -> str:
    """Returns the table of a group of scalar functions."""
    alike: dict[tuple[tuple[Kind, ...], int, int | None, str], list[str]] = {}
    for name, function in group.items():
        alike.setdefault((function.kinds, function.least, function.most, function.result.text), []).append(name)
    rows = [(codes(names), code(_signature(group[names[0]])), group[names[0]].result.text) for names in alike.values()]
    return table(("Function", "Arguments", "Result"), rows)


def kinds_table() -> str:
    """Returns the table of the kinds of arguments, with their types."""
    return table(("Argument", "Types"), [(code(name), _types_of(kind)) for kind, name in KINDS.items()])


def forms_table() -> str:
    """Returns the table of functions that are read as an operator, a CAST or another call."""
    alike: dict[tuple[str, str], list[str]] = {}
    for name, form in FORMS.items():
        alike.setdefault((form.arity if form.most < MANY else f"at least {form.least}", form.text), []).append(name)
    rows = [(codes(names), arity, code(text)) for (arity, text), names in alike.items()]
    return table(("Function", "Number of arguments", "Read as"), rows)


def classes_table() -> str:
    """Returns the table of the classes of functions, with the functions of those that are not deterministic."""
    aggregates = [name.lower() for name in (*AggregateFunction, *SYNONYMS)]
    scalars = [*FUNCTIONS, *FORMS]
    found = by_class((*scalars, *aggregates, *WINDOW_FUNCTIONS))
    rows = [
        (kind.value, codes(names) if kind in _LISTED else "all others", _MEANINGS[kind])
        for kind, names in found.items()
        if kind in _MEANINGS
    ]
    return table(("Class", "Functions", "Result"), rows)


_LISTED = {FunctionClass.CLOCK, FunctionClass.ORDER_DEPENDENT, FunctionClass.APPROXIMATE}
_MEANINGS = {
    FunctionClass.DETERMINISTIC: "the same whenever the job runs",
    FunctionClass.CLOCK: "the same for all rows; a retry has another time",
    FunctionClass.AGGREGATE: "the same whenever the job runs, but for the last digits of FLOAT and DOUBLE",
    FunctionClass.ORDER_DEPENDENT: "depends on the order in which Spark reads the rows; the plan has a note (`order`)",
    FunctionClass.APPROXIMATE: "an estimate, which depends on how the rows are distributed",
}


def aggregates_table() -> str:
    """Returns the result types of the aggregate functions, by the type of their argument."""
    synonyms: dict[AggregateFunction, list[str]] = {}
    for name, function in SYNONYMS.items():
        synonyms.setdefault(function, []).append(name)
    rows = [
        (codes((function.value, *synonyms.get(function, ()))), *(_aggregated(function, type_) for type_ in _ARGUMENTS))
        for function in AggregateFunction
    ]
    return table(("Function", *map(str, _ARGUMENTS)), rows)


def ordered_table() -> str:
    """Returns the lists of functions that take an order, and how it is written."""
    inside = [function.value for function in ORDERED if function.value not in WITHIN_GROUP]
    return table(
        ("Functions", "How the order is written"),
        [
            (codes(sorted(inside)), "`FIRST_VALUE(x ORDER BY t)`"),
            (codes(sorted(WITHIN_GROUP)), "`LISTAGG(x, ',') WITHIN GROUP (ORDER BY t)`"),
        ],
    )


def parts_table() -> str:
    """Returns the table of the units of INTERVAL and the parts of EXTRACT."""
    rows = [
        ("`INTERVAL '1' unit`", codes(sorted(INTERVAL_UNITS))),
        ("`EXTRACT(part FROM t)`", codes(sorted(EXTRACT_PARTS))),
    ]
    return table(("Expression", "Units and parts"), rows)


def refused_clauses() -> str:
    """Returns the table of clauses that are refused, with what to write instead."""
    rows = [(code(name), CLAUSE_HINTS.get(clause, "")) for clause, name in CLAUSES.items()]
    return table(("Clause", "Instead"), rows)


def refused_constructs() -> str:
    """Returns the table of parts of expressions that are refused, with what to write instead."""
    joined: dict[tuple[str, str], None] = {}
    for kind, name in CONSTRUCTS.items():
        joined[(name, HINTS.get(kind, ""))] = None
    return table(("Construct", "Instead"), joined)


def refused_functions() -> str:
    """Returns the table of functions of Spark and other dialects that are refused, with what to write instead."""
    instead: dict[str, list[str]] = {}
    for known in (UNSUPPORTED_AGGREGATES, UNSUPPORTED_SCALARS):
        for name, hint in known.items():
            instead.setdefault(hint, []).append(name)
    rows = [(codes(names), hint or "None.") for hint, names in instead.items()]
    return table(("Function", "Instead"), rows)


def refused_kinds() -> str:
    """Returns the table of kinds of functions that are refused, and why."""
    kinds: dict[str, list[str]] = {}
    for name, why in UNSUPPORTED_KINDS.items():
        kinds.setdefault(why, []).append(name)
    return table(("Functions", "Why, and what to do"), [(codes(names), f"Each {why}") for why, names in kinds.items()])


def _result_of_operator(operator: str, left: DataType, right: DataType) -> str:
    try:
        result = arithmetic(operator, left, right)
    except Incompatible:
        return _REFUSED
    return "as in Spark" if result is None else str(result)


def _pattern(operator: str) -> str:
    return (
        "a regular expression"
        if operator == "RLIKE"
        else "a pattern of LIKE: `%`, `_`, and `\\` or ESCAPE; or ANY or ALL and patterns in parentheses"
    )


def _signature(function: Function) -> str:
    written = [
        KINDS[function.kind(index)] for index in range(function.least if function.most is None else function.most)
    ]
    required, optional = written[: function.least], written[function.least :]
    text = ", ".join(required) + "".join(f"[, {one}]" if required else f"[{one}]" for one in optional)
    return f"({text}, …)" if function.most is None else f"({text})"


def _types_of(kind: Kind) -> str:
    if kind in _DESCRIBED:
        return _DESCRIBED[kind]
    return ", ".join(sorted(name.value for name in kind.value if name is not TypeName.NULL))


def _aggregated(function: AggregateFunction, type_: DataType) -> str:
    if not takes(function, type_):
        return _REFUSED
    result = result_type(function, type_)
    return "as in Spark" if result is None else str(result)


def _all() -> Iterator[tuple[str, Callable[[], str]]]:
    yield "types", types_table
    yield "arithmetic operators", arithmetic_table
    yield "conditions", conditions_table
    yield "units and parts", parts_table
    yield "kinds of arguments", kinds_table
    for name, group in GROUPS.items():
        yield f"functions of {name}", partial(functions_table, group)
    yield "forms of functions", forms_table
    yield "classes of functions", classes_table
    yield "aggregate functions", aggregates_table
    yield "ordered aggregates", ordered_table
    yield "refused clauses", refused_clauses
    yield "refused constructs", refused_constructs
    yield "refused functions", refused_functions
    yield "refused kinds of functions", refused_kinds


TABLES: dict[str, Callable[[], str]] = dict(_all())
"""The tables of this module, by name."""

"""The class of every function of Spark 4.3 (`SHOW SYSTEM FUNCTIONS`): supported, or excluded and why.

The supported functions have their types in `service.sql.types.functions` (scalar functions), in
`service.sql.types.aggregates` (aggregates) and in `service.sql.expressions.window_functions`. `EXCLUDED` has all
others; messages and the documentation are written from it. `tests/service/sql/test_builtins.py` compares both with
Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from service.sql.expressions.calls import function_named
from service.sql.expressions.function_forms import FORMS, WITH_UNITS
from service.sql.expressions.window_functions import WINDOW_FUNCTIONS
from service.sql.refusals import EXCLUDED
from service.sql.statements.session_windows import SESSION_WINDOW
from service.sql.statements.tables.time_windows import WINDOW
from service.sql.types.aggregates import APPROXIMATE, ORDER_DEPENDENT
from service.sql.types.functions import FUNCTIONS


class FunctionClass(StrEnum):
    """What is known about the result of a function. Values are as the documentation shows them."""

    DETERMINISTIC = "deterministic"
    CLOCK = "time of the attempt"
    AGGREGATE = "aggregate"
    ORDER_DEPENDENT = "aggregate, depends on the order of the rows"
    APPROXIMATE = "aggregate, approximate"
    WINDOW = "window function"
    OPERATOR = "operator"
    EXCLUDED = "excluded"


STRUCT = "struct"
"""The function that is read as `named_struct`."""
CLOCKS = frozenset({"current_date", "curdate", "current_timestamp", "now", "localtimestamp"})
"""Functions that return the time at which an attempt begins: the same for all rows, but another one in a retry."""
_OPERATORS = (
    "! != % & * + - / < << <= <=> <> = == > >= >> >>> ^ | || ~ and or not in between case when cast extract div"
)
OPERATORS = frozenset(_OPERATORS.split())
"""Names under which Spark lists operators and syntax."""


def class_of(name: str) -> FunctionClass | None:
    """Returns the class of the function or operator `name`, in lower case; None for a name that has none."""
    if name in OPERATORS:
        return FunctionClass.OPERATOR
    if name in CLOCKS:
        return FunctionClass.CLOCK
    aggregate = function_named(name)
    if aggregate is not None:
        if aggregate in ORDER_DEPENDENT:
            return FunctionClass.ORDER_DEPENDENT
        return FunctionClass.APPROXIMATE if aggregate in APPROXIMATE else FunctionClass.AGGREGATE
    if name in WINDOW_FUNCTIONS:
        return FunctionClass.WINDOW
    if name in FUNCTIONS or name in FORMS or name in WITH_UNITS or name in {STRUCT, WINDOW, SESSION_WINDOW}:
        return FunctionClass.DETERMINISTIC
    return FunctionClass.EXCLUDED if name in EXCLUDED else None


def by_class(names: Mapping[str, object] | tuple[str, ...]) -> dict[FunctionClass, list[str]]:
    """Returns `names` grouped by class, in order; those without a class are left out."""
    found: dict[FunctionClass, list[str]] = {kind: [] for kind in FunctionClass}
    for name in names:
        kind = class_of(name)
        if kind is not None:
            found[kind].append(name)
    return found

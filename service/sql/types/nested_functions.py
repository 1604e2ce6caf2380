"""The part of the table of functions that is about arrays, maps, structures and JSON, and the limits of their results.

`service.sql.types.functions` has the whole table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date

from service.contract.problems import SpecError
from service.sql.ddl import parse_schema, parse_type
from service.sql.expressions.nodes import (
    Arithmetic,
    Call,
    Case,
    Cast,
    Column,
    Comparison,
    Expression,
    GetField,
    Interval,
    Lambda,
    Number,
    String,
    Variable,
    walk,
)
from service.sql.types.data_types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    NULL,
    STRING,
    TIMESTAMP,
    DataType,
    Field,
    Incompatible,
    TypeName,
    array,
    common_type,
    mapping,
    struct,
    widest,
)
from service.sql.types.intervals import kind_of
from service.sql.types.lambdas import part_of
from service.sql.types.signatures import (
    Arguments,
    Function,
    Kind,
    Result,
    Types,
    always,
    by_types,
    literal_integer,
    rows,
)

_DIGITS = 19
"""The most digits of a BIGINT."""
MAX_ELEMENTS = 10_000
"""The most elements that `sequence` and `array_repeat` may create for one row."""
_DAYS = {"DAY": 1, "WEEK": 7, "MONTH": 28, "YEAR": 365}
"""A lower bound of the days of an interval's units."""
_DAY = 86_400.0
_SECONDS = {
    **{unit: days * _DAY for unit, days in _DAYS.items()},
    "HOUR": 3_600.0,
    "MINUTE": 60.0,
    "SECOND": 1.0,
    "MILLISECOND": 0.001,
    "MICROSECOND": 0.000_001,
}
_COMPUTED = "computed"
"""The parameter of the lambda function of `computed_once`."""
MAX_COMPUTED_ELEMENTS = 1_000_000
"""The most elements that `sequence` of columns may create for one row; with more, the job fails."""


def elements_created(name: str, arguments: Arguments) -> int | None:
    """Returns an upper bound of the elements that a call of `sequence` or `array_repeat` creates; None if its arguments
    do not bound them.
    """
    if name == "array_repeat":
        count = literal_integer(arguments[1])
        return None if count is None else max(count, 0)
    first, last = (_point(argument) for argument in arguments[:2])
    step = 1 if len(arguments) < 3 else _step(arguments[2])
    if first is None or last is None or not step or first[1] is not last[1]:
        return None
    return abs(last[0] - first[0]) // abs(step) + 1


def _point(node: Expression) -> tuple[int, type] | None:
    """Returns an integer, or the days of a date literal, and which of them it is."""
    number = literal_integer(node, _DIGITS)
    if number is not None:
        return number, int
    if isinstance(node, Cast) and node.type == DATE and isinstance(node.operand, String):
        try:
            return date.fromisoformat(node.operand.value).toordinal(), date
        except ValueError:
            return None
    return None


def _step(node: Expression) -> int | None:
    if isinstance(node, Interval):
        number = node.value.lstrip("+-")
        return int(number) * _DAYS[node.unit] if number.isdigit() and node.unit in _DAYS else None
    return literal_integer(node)


def limit_fault(name: str, arguments: Arguments) -> str | None:
    """Returns what is wrong with a call that could create more than MAX_ELEMENTS elements; None if nothing is."""
    if name not in {"sequence", "array_repeat"}:
        return None
    created = elements_created(name, arguments)
    if created is not None and created <= MAX_ELEMENTS:
        return None
    if name == "array_repeat":
        return f"The number of elements of array_repeat must be an integer literal of at most {MAX_ELEMENTS}."
    if created is None and is_measured(arguments):
        return None
    return (
        f"sequence may create at most {MAX_ELEMENTS} elements of literals. Its step must be an integer, or an INTERVAL "
        "of one unit."
    )


def is_measured(arguments: Arguments) -> bool:
    """Whether `guarded_sequence` can compare the distance of the bounds of `sequence` with its step."""
    step = arguments[2] if len(arguments) > 2 else None
    if isinstance(step, Interval):
        return (seconds_of(step) or 0) > 0
    return step is None or kind_of(step) is None


def seconds_of(interval: Interval) -> float | None:
    """Returns a lower bound of the seconds of an interval of one unit, without its sign; None for another one."""
    seconds = _SECONDS.get(interval.unit)
    try:
        return None if seconds is None else abs(float(interval.value)) * seconds
    except ValueError:
        return None


def guarded_sequence(call: Call, types: Types) -> Expression:
    """Returns a call of `sequence`, which fails for a row in which it would create too many elements."""
    has_columns = any(isinstance(part, Column | Variable) for part in walk(call))
    most = MAX_COMPUTED_ELEMENTS if has_columns else MAX_ELEMENTS
    written = [part for part in call.arguments if not isinstance(part, Interval)]
    names = [f"argument_{number}" for number in range(1, len(written) + 1)]
    pairs = [part for pair in zip(map(String, names), written, strict=True) for part in pair]
    step = [part for part in call.arguments if isinstance(part, Interval)]

    def checked(row: Variable) -> Expression:
        arguments: tuple[Expression, ...] = (*(GetField(row, name) for name in names), *step)
        return _checked_sequence(replace(call, arguments=arguments), types, most)

    return computed_once(Call("named_struct", tuple(pairs)), checked)


def computed_once(value: Expression, use: Callable[[Variable], Expression]) -> Expression:
    """Returns `use` of a variable with the value of `value`, which is computed once.

    Spark's optimizer does not evaluate the function of `transform`, even if `value` is constant. It does evaluate each
    constant branch of CASE, also one that no row takes.
    """
    variable = Variable(_COMPUTED)
    of_one = Call("transform", (Call("array", (value,)), Lambda((_COMPUTED,), use(variable))))
    return Call("element_at", (of_one, Number("1")))


def _checked_sequence(call: Call, types: Types, most: int) -> Expression:
    first, last, *rest = call.arguments
    step, points = rest[0] if rest else None, widest(types[:2], strings_convert=False)
    if points is not None and points.is_integral:
        ends: tuple[Expression, Expression] = Cast(last, DOUBLE, tries=False), Cast(first, DOUBLE, tries=False)
        unit: Expression = Number("1") if step is None else Call("abs", (Cast(step, DOUBLE, tries=False),))
    else:
        # A DATE is the timestamp of its begin.
        ends = _seconds(last), _seconds(first)
        unit = Number(f"{(seconds_of(step) if isinstance(step, Interval) else None) or _DAY:.6f}")
    distance = Call("abs", (Arithmetic("-", *ends),))
    message = String(f"sequence would create more than {most} elements.")
    is_long = Comparison(">", distance, Arithmetic("*", Number(str(most)), unit))
    return Case(None, ((is_long, Call("raise_error", (message,))),), call)


def _seconds(node: Expression) -> Expression:
    return Cast(Cast(node, TIMESTAMP, tries=False), DOUBLE, tries=False)


def concatenated_arrays(types: Types) -> DataType | None:
    """Returns the common type of arrays. Raises Incompatible for other types."""
    if any(type_ is not None and type_.name not in {TypeName.ARRAY, TypeName.NULL} for type_ in types):
        raise Incompatible
    return widest(types, strings_convert=False)


def _first(types: Types) -> DataType | None:
    return _unless_null(types[0])


def _unless_null(type_: DataType | None) -> DataType | None:
    return None if type_ is None or type_.name is TypeName.NULL else type_


def _array_of(types: Types) -> DataType | None:
    if not types:
        return array(NULL)
    element = widest(types, strings_convert=True)
    return None if element is None else array(element)


def _map_of(types: Types) -> DataType | None:
    if len(types) % 2:
        raise Incompatible
    if not types:
        return mapping(NULL, NULL)
    key, value = widest(types[::2], strings_convert=True), widest(types[1::2], strings_convert=True)
    return None if key is None or value is None else mapping(_key(key), value)


def _key(type_: DataType) -> DataType:
    if not type_.is_groupable:
        raise Incompatible
    return type_


def _structure(types: Types, arguments: Arguments) -> DataType | None:
    names = arguments[::2]
    # Spark would replace `${…}` where the name becomes part of a type.
    if len(types) % 2 or not all(isinstance(name, String) and name.value and "${" not in name.value for name in names):
        raise Incompatible
    values = types[1::2]
    labels = [name.value for name in names if isinstance(name, String)]
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return struct([Field(label, value) for label, value in zip(labels, known, strict=True)])


def _element(types: Types) -> DataType | None:
    return part_of(types[0], TypeName.ARRAY)


def _ordered_element(types: Types) -> DataType | None:
    return _element((_ordered(types),))


def _ordered(types: Types) -> DataType | None:
    """Returns an array whose elements have an order."""
    if types[0] is not None and not types[0].is_groupable:
        raise Incompatible
    return _first(types)


def _compared(types: Types) -> DataType | None:
    """Returns the first argument, an array whose elements can be compared with the second one."""
    _with_element(types, 1)
    return _ordered(types)


def _with_element(types: Types, place: int) -> DataType | None:
    """Returns the array with one more element, the argument at `place`."""
    of, value = types[0], types[place]
    if of is None or value is None or of.name is not TypeName.ARRAY:
        return None
    element = common_type(of.parts[0], value, strings_convert=False)
    return None if element is None else array(element)


def _both(types: Types) -> DataType | None:
    """Returns the common type of two arrays whose elements can be compared."""
    found = concatenated_arrays(types)
    return None if found is None else _ordered((found,))


def _found_in(result: DataType) -> Callable[[Types], DataType]:
    def rule(types: Types) -> DataType:
        if types[1] == NULL:
            raise Incompatible
        _compared(types)
        return result

    return rule


def _overlap(types: Types) -> DataType:
    _both(types)
    return BOOLEAN


def _flat(types: Types) -> DataType | None:
    inner = _element(types)
    if inner is not None and inner.name is not TypeName.ARRAY:
        raise Incompatible
    return inner


def _joined(types: Types) -> DataType:
    element = _element(types)
    if element is not None and element.name not in {TypeName.STRING, TypeName.NULL}:
        raise Incompatible
    return STRING


def _at(types: Types) -> DataType | None:
    of = types[0]
    if of is None or of.name is TypeName.NULL:
        return None
    if of.name is TypeName.MAP:
        if types[1] is not None:
            common_type(of.parts[0], types[1], strings_convert=False)
        return of.parts[1]
    if types[1] is not None and (not types[1].is_integral or types[1] == BIGINT):
        raise Incompatible
    return of.parts[0]


def _sequence(types: Types) -> DataType | None:
    points = widest(types[:2], strings_convert=False)
    return None if points is None else array(points)


def _zipped(types: Types) -> DataType | None:
    elements = [part_of(type_, TypeName.ARRAY) for type_ in types]
    known = [element for element in elements if element is not None]
    if len(known) < len(elements):
        return None
    return array(struct([Field(str(index), element) for index, element in enumerate(known)]))


def _keys(types: Types) -> DataType | None:
    key = part_of(types[0], TypeName.MAP)
    return None if key is None else array(key)


def _values(types: Types) -> DataType | None:
    value = part_of(types[0], TypeName.MAP, 1)
    return None if value is None else array(value)


def _entries(types: Types) -> DataType | None:
    of = types[0]
    if of is None or of.name is not TypeName.MAP:
        return None
    return array(struct([Field("key", of.parts[0]), Field("value", of.parts[1])]))


def _from_arrays(types: Types) -> DataType | None:
    keys, values = (part_of(type_, TypeName.ARRAY) for type_ in types)
    return None if keys is None or values is None else mapping(_key(keys), values)


def _from_entries(types: Types) -> DataType | None:
    entry = _element(types)
    if entry is None:
        return None
    if entry.name is not TypeName.STRUCT or len(entry.parts) != 2:
        raise Incompatible
    return mapping(_key(entry.parts[0]), entry.parts[1])


def _maps(types: Types) -> DataType | None:
    return widest(types, strings_convert=False)


def _has_key(types: Types) -> DataType:
    key = part_of(types[0], TypeName.MAP)
    if key is not None and types[1] is not None:
        common_type(key, types[1], strings_convert=False)
    return BOOLEAN


def _transformed(types: Types) -> DataType | None:
    return None if types[1] is None else array(types[1])


def _kept(types: Types) -> DataType | None:
    _condition(types)
    return _first(types)


def _condition(types: Types) -> DataType:
    if types[1] is not None and types[1].name not in {TypeName.BOOLEAN, TypeName.NULL}:
        raise Incompatible
    return BOOLEAN


def _folded(types: Types) -> DataType | None:
    # Spark does not convert the result of the lambda.
    if types[1] is not None and types[2] is not None and types[1] != types[2]:
        raise Incompatible
    return types[3] if len(types) > 3 else types[1]


def _zipped_with(types: Types) -> DataType | None:
    return None if types[2] is None else array(types[2])


def _sorted(types: Types, arguments: Arguments) -> DataType | None:
    if len(arguments) < 2:
        return _ordered(types)
    if types[1] is not None and types[1] != INT:
        raise Incompatible
    return _first(types)


def _new_keys(types: Types) -> DataType | None:
    value = part_of(types[0], TypeName.MAP, 1)
    return None if types[1] is None or value is None else mapping(_key(types[1]), value)


def _new_values(types: Types) -> DataType | None:
    key = part_of(types[0], TypeName.MAP)
    return None if types[1] is None or key is None else mapping(key, types[1])


def _zipped_maps(types: Types) -> DataType | None:
    key = part_of(types[0], TypeName.MAP)
    return None if types[2] is None or key is None else mapping(key, types[2])


def _parsed(_types: Types, arguments: Arguments) -> DataType | None:
    schema = arguments[1]
    if not isinstance(schema, String):
        raise Incompatible
    return json_type(schema.value)


def json_type(text: str) -> DataType:
    """Returns the type that the schema of `from_json` names: that of a value, or the columns of a structure.

    Raises Incompatible for a text that is neither.
    """
    try:
        found = parse_type(text, "")
    except SpecError:
        try:
            found = struct(parse_schema(text, "").fields)
        except SpecError:
            raise Incompatible from None
    if not found.is_nested or "${" in str(found):
        raise Incompatible
    return found


def _described(_types: Types, arguments: Arguments) -> DataType:
    if not isinstance(arguments[0], String):
        raise Incompatible
    return STRING


_ARRAY, _MAP, _VALUE, _ANY = (Kind.ARRAY,), (Kind.MAP,), (Kind.VALUE,), (Kind.ANY,)
_ARRAY_AND_VALUE = (Kind.ARRAY, Kind.VALUE)
_SAME = by_types("the type of the first argument", _first)
_SAME_ORDERED = by_types("the type of the first argument, whose elements have an order", _ordered)
_ELEMENT = by_types("the type of an element", _element)
_COMMON_ARRAY = by_types("the common type of the arrays", _both)
_LONGER = by_types(
    "the array, with the common type of its elements and the value", lambda types: _with_element(types, 1)
)
_TRUTH = by_types("BOOLEAN", _condition)
_NEW_ARRAY = by_types("an array of the results of the lambda", _transformed)
_TEXTS = by_types("an array of STRING", lambda _types: array(STRING))
_FOLDED = by_types("the result of the last lambda", _folded)


def _fold(names: Sequence[str]) -> dict[str, Function]:
    return rows(" ".join(names), 3, 4, (Kind.ARRAY, Kind.VALUE, Kind.LAMBDA), _FOLDED)


NESTED_GROUPS: dict[str, dict[str, Function]] = {
    "arrays": {
        **rows("array", 0, None, _VALUE, by_types("an array of the common type of the arguments", _array_of)),
        **rows("size cardinality", 1, 1, (Kind.COLLECTION,), always(INT)),
        **rows("array_size", 1, 1, _ARRAY, always(INT)),
        **rows(
            "element_at try_element_at",
            2,
            2,
            (Kind.COLLECTION, Kind.VALUE),
            by_types("the type of an element, or of a value", _at),
        ),
        **rows("get", 2, 2, (Kind.ARRAY, Kind.NUMBER), _ELEMENT),
        **rows("array_contains", 2, 2, _ARRAY_AND_VALUE, by_types("BOOLEAN", _found_in(BOOLEAN))),
        **rows("array_position", 2, 2, _ARRAY_AND_VALUE, by_types("BIGINT", _found_in(BIGINT))),
        **rows("array_remove", 2, 2, _ARRAY_AND_VALUE, by_types("the type of the first argument", _compared)),
        **rows("array_append array_prepend", 2, 2, _ARRAY_AND_VALUE, _LONGER),
        **rows(
            "array_insert",
            3,
            3,
            (Kind.ARRAY, Kind.DAYS, Kind.VALUE),
            by_types(
                "the array, with the common type of its elements and the value", lambda types: _with_element(types, 2)
            ),
        ),
        **rows("array_distinct", 1, 1, _ARRAY, _SAME_ORDERED),
        **rows("array_compact", 1, 1, _ARRAY, _SAME),
        **rows("array_max array_min", 1, 1, _ARRAY, by_types("the type of an element", _ordered_element)),
        **rows("sort_array", 1, 2, (Kind.ARRAY, Kind.BOOLEAN), _SAME_ORDERED),
        **rows("array_union array_intersect array_except", 2, 2, _ARRAY, _COMMON_ARRAY),
        **rows("arrays_overlap", 2, 2, _ARRAY, by_types("BOOLEAN", _overlap)),
        **rows("array_join", 2, 3, (Kind.ARRAY, Kind.ANY), by_types("STRING", _joined)),
        **rows("slice", 3, 3, (Kind.ARRAY, Kind.DAYS), _SAME),
        **rows("flatten", 1, 1, _ARRAY, by_types("the type of an element, an array", _flat)),
        **rows(
            "array_repeat", 2, 2, (Kind.VALUE, Kind.DAYS), by_types("an array of the value", lambda t: _array_of(t[:1]))
        ),
        **rows("sequence", 2, 3, (Kind.ANY,), by_types("an array of the common type of the bounds", _sequence)),
        **rows("arrays_zip", 1, None, _ARRAY, by_types("an array of structures of the elements", _zipped)),
        **rows("split", 2, 3, (Kind.ANY, Kind.ANY, Kind.NUMBER), _TEXTS),
        **rows("regexp_extract_all", 2, 3, (Kind.ANY, Kind.ANY, Kind.NUMBER), _TEXTS),
    },
    "maps": {
        **rows("map", 0, None, _VALUE, by_types("a map of the common types of keys and values", _map_of)),
        **rows("map_keys", 1, 1, _MAP, by_types("an array of the keys", _keys)),
        **rows("map_values", 1, 1, _MAP, by_types("an array of the values", _values)),
        **rows("map_entries", 1, 1, _MAP, by_types("an array of structures of `key` and `value`", _entries)),
        **rows("map_from_arrays", 2, 2, _ARRAY, by_types("a map of the elements", _from_arrays)),
        **rows("map_from_entries", 1, 1, _ARRAY, by_types("a map of the fields of the elements", _from_entries)),
        **rows("map_concat", 1, None, _MAP, by_types("the common type of the maps", _maps)),
        **rows("map_contains_key", 2, 2, (Kind.MAP, Kind.VALUE), by_types("BOOLEAN", _has_key)),
        **rows("str_to_map", 1, 3, _ANY, by_types("a map of STRING to STRING", lambda _types: mapping(STRING, STRING))),
    },
    "structures": {
        **rows("named_struct", 2, None, _VALUE, Result("a structure; each name is a string literal", _structure)),
    },
    "lambdas": {
        **rows("transform", 2, 2, (Kind.ARRAY, Kind.LAMBDA), _NEW_ARRAY),
        **rows("filter", 2, 2, (Kind.ARRAY, Kind.LAMBDA), by_types("the type of the first argument", _kept)),
        **rows("exists forall", 2, 2, (Kind.ARRAY, Kind.LAMBDA), _TRUTH),
        **_fold(("aggregate", "reduce")),
        **rows(
            "zip_with",
            3,
            3,
            (Kind.ARRAY, Kind.ARRAY, Kind.LAMBDA),
            by_types("an array of the results of the lambda", _zipped_with),
        ),
        **rows("array_sort", 1, 2, (Kind.ARRAY, Kind.LAMBDA), Result("the type of the first argument", _sorted)),
        **rows("transform_keys", 2, 2, (Kind.MAP, Kind.LAMBDA), by_types("a map with the new keys", _new_keys)),
        **rows("transform_values", 2, 2, (Kind.MAP, Kind.LAMBDA), by_types("a map with the new values", _new_values)),
        **rows("map_filter", 2, 2, (Kind.MAP, Kind.LAMBDA), by_types("the type of the first argument", _kept)),
        **rows(
            "map_zip_with",
            3,
            3,
            (Kind.MAP, Kind.MAP, Kind.LAMBDA),
            by_types("a map with the results of the lambda", _zipped_maps),
        ),
    },
    "JSON": {
        **rows("get_json_object", 2, 2, _ANY, always(STRING)),
        **rows("json_array_length", 1, 1, _ANY, always(INT)),
        **rows("json_object_keys", 1, 1, _ANY, _TEXTS),
        **rows("from_json", 2, 2, _ANY, Result("the type that the second argument, a string literal, names", _parsed)),
        **rows("to_json", 1, 1, (Kind.DOCUMENT,), always(STRING)),
        **rows("schema_of_json", 1, 1, _ANY, Result("STRING; the argument is a string literal", _described)),
    },
}
"""By the name of a group, then by lower-case name."""

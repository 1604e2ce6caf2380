"""Infers the type of every expression over resolved columns, as in Spark 4.3 with ANSI mode on.

The type is None if it is not known before the query runs. `type_mismatch` is only raised for expressions that Spark is
certain to refuse.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from service.contract.problems import SpecError, did_you_mean, nearest_names
from service.sql.expressions.nodes import (
    Aggregate,
    Arithmetic,
    Between,
    Binary,
    BitwiseNot,
    Boolean,
    Call,
    Case,
    Cast,
    Column,
    Comparison,
    Connective,
    Element,
    Expression,
    Extract,
    GetField,
    InList,
    Interval,
    Keyword,
    Lambda,
    Like,
    Name,
    Negation,
    Not,
    Null,
    Number,
    Over,
    String,
    Test,
    Variable,
    position_of,
)
from service.sql.expressions.scalar import render
from service.sql.parser import Text
from service.sql.types import data_types, intervals
from service.sql.types.data_types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DOUBLE,
    INT,
    INTEGRAL,
    NULL,
    NUMERIC,
    STRING,
    TEMPORAL,
    DataType,
    Incompatible,
    Schema,
    TypeName,
    decimal,
)
from service.sql.types.document_functions import PATHS
from service.sql.types.functions import FUNCTIONS
from service.sql.types.intervals import IntervalKind
from service.sql.types.lambdas import LAMBDAS, part_of
from service.sql.types.literal_arguments import escape_fault, refused_literal
from service.sql.types.nested_functions import NESTED_GROUPS, elements_created, limit_fault
from service.sql.types.signatures import Function, Kind, Types

_INTEGER_TEXT = re.compile(r"[+-]?\d+", re.ASCII)
_NUMBER_TEXT = re.compile(
    r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?[df]?|nan|inf(?:inity)?)", re.ASCII | re.IGNORECASE
)
"""The texts that Spark can convert to an integer, or to any number."""
_CONDITIONS = frozenset({TypeName.BOOLEAN, TypeName.STRING, TypeName.NULL})
_NUMBERS = NUMERIC | {TypeName.STRING, TypeName.NULL}
_TIMES = TEMPORAL | {TypeName.STRING, TypeName.NULL}
_WITH_INTERVALS = frozenset({Kind.ANY, Kind.VALUE, Kind.ALL, Kind.FORMAT, Kind.PRINTABLE, Kind.LAMBDA})
"""The kinds of arguments that may be intervals."""
_INDEXES = INTEGRAL | {TypeName.NULL}
_NESTED_NAMES = frozenset(name for group in NESTED_GROUPS.values() for name in group)
_SUFFIX_TYPES = {
    "L": TypeName.BIGINT,
    "S": TypeName.SMALLINT,
    "Y": TypeName.TINYINT,
    "D": TypeName.DOUBLE,
}


class Typing:
    """Infers the types of the expressions of one text. `guarded` are the types of the arguments of calls that must fail
    for some values, by the identity of the call: they may create any number of elements, or read XML.
    """

    def __init__(self, source: Text) -> None:
        self.guarded: dict[int, tuple[DataType | None, ...]] = {}
        self._differences: set[int] = set()
        """The identities of the differences of dates and times, which are intervals."""
        self._source = source
        self._variables: Mapping[str, DataType | None] = {}

    def type_of(self, node: Expression) -> DataType | None:
        """Returns the type of `node`. Raises SpecError `type_mismatch`."""
        match node:
            case Column(type=type_):
                return type_
            case Null():
                return NULL
            case Boolean():
                return BOOLEAN
            case Number():
                return number_type(node)
            case String():
                return STRING
            case Binary():
                return BINARY
            case Cast():
                return self._cast(node)
            case Arithmetic():
                return self._arithmetic(node)
            case Negation():
                return self._negation(node)
            case BitwiseNot():
                return self._bitwise_not(node)
            case Case():
                return self._case(node)
            case Call():
                return self._call(node)
            case Extract():
                kind = intervals.kind_of(node.operand)
                if kind is not None:
                    self.type_of(node.operand)
                    return intervals.part_of(node.part, kind)
                operand = self.computable(node.operand)
                self._require(operand, _TIMES, node.operand, f"EXTRACT({node.part} …)")
                return decimal(8, 6) if node.part == "SECOND" else INT
            case Interval() | Name() | Aggregate() | Keyword():
                return None
            case GetField() | Element() | Variable() | Lambda():
                return self._part(node)
            case Over():
                raise self._source.unsupported(
                    f"{node.function.upper()} with OVER",
                    at=node.at,
                    hint="Use it in SELECT, ORDER BY or QUALIFY, and not inside another call with OVER. To filter or "
                    "group by it, put it into a derived table.",
                )
            case Connective():
                return self._connective(node)
            case _:
                self._condition(node)
                return BOOLEAN

    def computable(self, node: Expression) -> DataType | None:
        """Returns the type of an operand. Raises SpecError `type_mismatch` for a nested or Spark-only one."""
        type_ = self.value(node)
        if type_ is not None and type_.is_nested:
            detail = f"{_text(node)} has the type {type_}, which cannot be used here."
            raise self.mismatch(f"{detail} Use its parts, such as {_part_of(node, type_)}.", node)
        return type_

    def value(self, node: Expression) -> DataType | None:
        """Returns the type of a value that may be nested. Raises SpecError `type_mismatch` for a Spark-only type."""
        type_ = self.type_of(node)
        if type_ is not None and type_.name is TypeName.OTHER:
            detail = f"{_text(node)} has the type {type_}, which can be selected but not used in expressions."
            raise self.mismatch(f"{detail} Store it with another type in the files.", node)
        return type_

    def groupable(self, node: Expression) -> DataType | None:
        """Returns the type of a key to group or sort by. Raises SpecError `type_mismatch` if it has no equality."""
        type_ = self.type_of(node)
        if intervals.kind_of(node) is IntervalKind.CALENDAR:
            raise self.mismatch(f"{_text(node)} is an interval, which cannot be compared. {intervals.WAY_OUT}", node)
        if type_ is not None and not type_.is_groupable:
            raise self.mismatch(
                f"{_text(node)} has the type {type_}, whose values cannot be compared. Use atomic values, or arrays or "
                "structures of them; for a map, write map_entries(m), an array of structures with key and value.",
                node,
            )
        return type_

    def require_condition(self, node: Expression, what: str) -> None:
        """Raises SpecError `type_mismatch` unless `node` can be the condition of the clause `what`."""
        type_ = self.computable(node)
        # Unlike an operand of AND, a string is not converted here.
        if type_ is not None and type_.name not in {TypeName.BOOLEAN, TypeName.NULL}:
            raise self.mismatch(f"{what} needs a condition, but {_text(node)} is {type_}.", node)

    def mismatch(self, detail: str, node: Expression) -> SpecError:
        """Returns a `type_mismatch` error at `node`."""
        return self._source.error("type_mismatch", detail, at=position_of(node))

    def _require(self, type_: DataType | None, names: frozenset[TypeName], node: Expression, what: str) -> None:
        if type_ is not None and type_.name not in names:
            raise self.mismatch(f"{what} does not take {_text(node)}, which is {type_}.", node)

    def _interval(self, node: Expression) -> IntervalKind | None:
        """Returns the kind of an interval whose type has been inferred."""
        return IntervalKind.TIME if id(node) in self._differences else intervals.kind_of(node)

    def _refuse_intervals(self, what: str, nodes: Sequence[Expression], types: Sequence[DataType | None]) -> None:
        """Raises SpecError `type_mismatch` if an interval is used together with a value that is none."""
        interval = next((node for node in nodes if self._interval(node) is not None), None)
        if interval is None:
            return
        for node, type_ in zip(nodes, types, strict=True):
            if type_ is not None and type_.name not in {TypeName.NULL, TypeName.STRING}:
                detail = (
                    f"{what} cannot use {_text(interval)}, which is an interval, with {_text(node)}, which is {type_}."
                )
                raise self.mismatch(f"{detail} {intervals.IN_UNITS}", interval)

    def _cast(self, node: Cast) -> DataType:
        source, target = self.value(node.operand), node.type
        if source is not None and not convertible(source, target):
            raise self.mismatch(f"{_text(node.operand)} is {source}, which cannot be CAST to {target}.", node)
        return target

    def _negation(self, node: Negation) -> DataType | None:
        operand = node.operand
        if isinstance(operand, Number) and operand.is_integer and not operand.suffix:
            # -2147483648 is an INT although 2147483648 is not.
            return _integer_type(-int(operand.text), operand.text)
        type_ = self.computable(operand)
        self._require(type_, _NUMBERS, operand, "-")
        return DOUBLE if type_ in {STRING, NULL} else type_

    def _bitwise_not(self, node: BitwiseNot) -> DataType | None:
        type_ = self.computable(node.operand)
        self._require(type_, _INDEXES, node.operand, "~")
        return None if type_ == NULL else type_

    def _arithmetic(self, node: Arithmetic) -> DataType | None:
        if intervals.kind_of(node.left) is not None or intervals.kind_of(node.right) is not None:
            return self._with_interval(node)
        joins = node.operator == "||"
        left, right = (self.value(side) if joins else self.computable(side) for side in (node.left, node.right))
        if not joins and {id(node.left), id(node.right)} & self._differences:
            return self._with_interval(node)
        both_times = left is not None and right is not None and left.name in TEMPORAL and right.name in TEMPORAL
        if node.operator == "-" and both_times:
            self._differences.add(id(node))
            return None
        if left is None or right is None:
            if any(side is not None and side.is_nested for side in (left, right)):
                return None
            return STRING if node.operator == "||" and _is_text(left, right) else None
        if TypeName.DECIMAL in {left.name, right.name} and node.operator != "||":
            left, right = _narrow(node.left, left), _narrow(node.right, right)
        try:
            return data_types.arithmetic(node.operator, left, right)
        except Incompatible:
            left_text, right_text = _text(node.left), _text(node.right)
            hint = "CAST one of them."
            if TEMPORAL & {left.name, right.name}:
                hint = "For dates and times, use date_add, datediff or an INTERVAL."
            elif left == right == STRING:
                hint = "To join texts, write ||; otherwise, CAST one of them to a number."
            detail = (
                f"{node.operator} cannot be applied to {left_text}, which is {left}, and {right_text}, which is "
                f"{right}. {hint}"
            )
            raise self.mismatch(detail, node) from None

    def _with_interval(self, node: Arithmetic) -> DataType | None:
        left, right = self._interval(node.left), self._interval(node.right)
        interval, other, kind = (node.right, node.left, right) if left is None else (node.left, node.right, left)
        self.type_of(interval)
        type_ = self.computable(other)
        if kind is None or self._interval(other) is not None or node.operator not in "+-" or type_ is None:
            return None
        if type_.name not in _TIMES:
            self._refuse_intervals(node.operator, (interval, other), (None, type_))
        self._require(type_, _TIMES, other, f"{node.operator} INTERVAL")
        if type_.name not in TEMPORAL or (interval is node.left and node.operator == "-"):
            return None
        return intervals.moved(type_, interval, kind)

    def _connective(self, node: Connective) -> DataType | None:
        types = [self.computable(term) for term in node.terms]
        for type_, term in zip(types, node.terms, strict=True):
            self._require(type_, _CONDITIONS, term, node.operator)
        if STRING not in types:
            return BOOLEAN
        if all(type_ == STRING for type_ in types):
            raise self.mismatch(f"{node.operator} needs conditions, but {_text(node.terms[0])} is STRING.", node)
        # Spark converts a string next to a condition; with more terms the result depends on how it pairs them.
        return BOOLEAN if len(types) == 2 and BOOLEAN in types else None

    def _condition(self, node: Comparison | Not | Test | InList | Between | Like) -> None:
        match node:
            case Not(operand):
                self._require(self.computable(operand), _CONDITIONS, operand, "NOT")
            case Test(operand, what):
                type_ = self.type_of(operand)
                if what != "NULL":
                    self._require(type_, _CONDITIONS, operand, f"IS {what}")
            case Comparison(operator, left, right):
                self._compare(operator, left, right)
            case InList(operand, items):
                self._compare("IN", operand, *items)
            case Between(operand, low, high):
                self._compare("BETWEEN", operand, low, high)
            case Like(operator, operand, pattern, escape):
                self.computable(operand)
                self.computable(pattern)
                fault = escape_fault(operator, pattern, escape)
                if fault is not None and not self._source.is_accepted:
                    raise self._source.error("unsupported_construct", fault, at=position_of(operand))

    def _compare(self, operator: str, left: Expression, *others: Expression) -> None:
        """Raises SpecError `type_mismatch` unless `left`, which is typed once, can be compared with all `others`."""
        one = self.value(left)
        for node in (left, *others):
            if intervals.kind_of(node) is IntervalKind.CALENDAR:
                hint = "Write make_dt_interval or make_ym_interval, or compare dates."
                raise self.mismatch(
                    f"{_text(node)} is an interval of all units, which cannot be compared. {hint}", node
                )
        types = [one, *map(self.value, others)]
        self._refuse_intervals(operator, (left, *others), types)
        for right, other in zip(others, types[1:], strict=True):
            if one is not None and other is not None and not data_types.comparable(one, other):
                hint = "Compare map_entries(m), or the values of keys." if one == other else cast_advice(one, other)
                detail = (
                    f"{operator} cannot compare {_text(left)}, which is {one}, with {_text(right)}, which is {other}. "
                    f"{hint}"
                )
                raise self.mismatch(detail, left)
            self._check_parameter(right, left, one)
            self._check_parameter(left, right, other)

    def _check_parameter(self, node: Expression, other: Expression, type_: DataType | None) -> None:
        """Raises SpecError `parameter_value` if `node` is a parameter whose text cannot be converted to `type_`, that
        of `other`. A string in the SQL fails only when a row is compared with it, as in Spark.
        """
        if not isinstance(node, String) or node.parameter is None or self._source.is_accepted:
            return
        pattern = _INTEGER_TEXT if type_ is not None and type_.name in INTEGRAL else _NUMBER_TEXT
        if type_ is None or not type_.is_numeric or pattern.fullmatch(node.value.strip()):
            return
        kind = "a whole number" if pattern is _INTEGER_TEXT else "a number"
        detail = (
            f"'{node.value[:40]}' is not {kind}, but is compared with {_text(other)}, which is {type_}. Give {kind}."
        )
        raise SpecError.of("parameter_value", detail, pointer=f"/parameters/{node.parameter}")

    def _case(self, node: Case) -> DataType | None:
        conditions = [when for when, _ in node.branches]
        if node.operand is not None:
            self._compare("WHEN", node.operand, *conditions)
        else:
            for when in conditions:
                self.require_condition(when, "WHEN")
        values = [then for _, then in node.branches] + ([node.default] if node.default is not None else [])
        types = [self.value(value) for value in values]
        self._refuse_intervals("CASE", values, types)
        is_unpivot = node.is_unpivot and not self._source.is_accepted
        try:
            return data_types.widest(types, strings_convert=not is_unpivot)
        except Incompatible:
            found = ", ".join(dict.fromkeys(str(type_) for type_ in types))
            what, remedy = "results of CASE", "CAST them to one type."
            if is_unpivot:
                what, remedy = "columns of UNPIVOT", "CAST them to one type in a derived table."
                names = (
                    value.name.rpartition(".")[2] if isinstance(value, Column) else _text(value) for value in values
                )
                found = ", ".join(f"{name} {type_}" for name, type_ in zip(names, types, strict=True))
            detail = f"The {what} have no common type: {found}. {remedy}"
            raise self.mismatch(detail, node) from None

    def _call(self, node: Call) -> DataType | None:
        function = FUNCTIONS[node.name]
        types = self._arguments(node, function)
        for index, (type_, argument) in enumerate(zip(types, node.arguments, strict=True)):
            if isinstance(argument, Lambda):
                continue
            if type_ is not None and not function.kind(index).admits(type_):
                raise self.mismatch(f"{node.name} does not take {_text(argument)}, which is {type_}.", node)
            takes_intervals = function.kind(index) in _WITH_INTERVALS or node.name in intervals.NUMBERS_OR_INTERVALS
            if type_ is None and not takes_intervals and self._interval(argument) is not None:
                detail = f"{node.name} does not take {_text(argument)}, which is an interval."
                raise self.mismatch(f"{detail} {intervals.IN_UNITS}", node)
        first = intervals.VALUES_FROM.get(node.name)
        if first is not None:
            self._refuse_intervals(node.name, node.arguments[first:], types[first:])
        fault = refused_literal(node.name, types, node.arguments) or limit_fault(node.name, node.arguments)
        if fault is not None:
            raise self.mismatch(fault, node)
        is_unbounded = node.name == "sequence" and elements_created(node.name, node.arguments) is None
        if is_unbounded or node.name in PATHS:
            self.guarded[id(node)] = types
        if node.name == "if":
            self.require_condition(node.arguments[0], "IF")
        if node.name == "nullif":
            self._compare("NULLIF", *node.arguments)
        try:
            return function.result(types, node.arguments)
        except Incompatible:
            raise self.mismatch(refused_arguments(node.name, types), node) from None

    def _arguments(self, node: Call, function: Function) -> Types:
        """Returns the types of the arguments; that of a lambda is the type of its body."""
        types: tuple[DataType | None, ...] = ()
        shapes = LAMBDAS.get(node.name, {})
        for index, argument in enumerate(node.arguments):
            if isinstance(argument, Lambda) and index in shapes:
                types = (*types, self._body(argument, shapes[index].types(types)))
            elif function.kind(index) is Kind.ALL:
                types = (*types, self.type_of(argument))
            else:
                types = (*types, self.value(argument))
        return types

    def _body(self, node: Lambda, types: Types) -> DataType | None:
        outer = self._variables
        self._variables = {**outer, **dict(zip(node.parameters, types, strict=False))}
        try:
            return self.value(node.body)
        finally:
            self._variables = outer

    def _part(self, node: GetField | Element | Variable | Lambda) -> DataType | None:
        match node:
            case Variable(name):
                return self._variables.get(name)
            case Lambda():
                return self._body(node, (None,) * len(node.parameters))
            case GetField(operand, name):
                return self._field(node, self.value(operand), name)
            case Element(operand, index):
                return self._element(node, self.value(operand), self.value(index))

    def _field(self, node: GetField, of: DataType | None, name: str) -> DataType | None:
        """Returns the type of a field: of a structure, of each structure of an array, or a map's value for a key."""
        if of is None or of.name is TypeName.NULL:
            return None
        if of.name is TypeName.MAP and of.parts[0] == STRING:
            return of.parts[1]
        inner = part_of(of, TypeName.ARRAY) or of
        if inner.name is not TypeName.STRUCT:
            raise self.mismatch(f"{_text(node.operand)} is {of}, which has no fields, so {name} is not one.", node)
        fields = Schema(inner.fields)
        found = fields.find(name)
        if found is None:
            alike = fields.alike(name) or ()
            names = [each.name for each in alike] or list(inner.labels)
            code = "ambiguous_column" if alike else "unknown_column"
            suggestions = () if alike else nearest_names(name, names)
            hint = did_you_mean(suggestions) or f" The fields are {', '.join(names[:12])}."
            detail = f"{_text(node.operand)} has no field {name}.{hint}"
            raise self._source.error(code, detail, at=position_of(node), suggestions=suggestions)
        return found.type if inner is of else data_types.array(found.type)

    def _element(self, node: Element, of: DataType | None, index: DataType | None) -> DataType | None:
        if of is None or of.name is TypeName.NULL:
            return None
        if of.name is TypeName.ARRAY:
            self._require(index, _INDEXES, node.index, "[…]")
            return of.parts[0]
        if of.name is not TypeName.MAP:
            hint = f" Write {_part_of(node.operand, of)}." if of.name is TypeName.STRUCT and of.labels else ""
            raise self.mismatch(f"{_text(node.operand)} is {of}, which has no elements.{hint}", node)
        if of.parts[0] == STRING and index is not None and index.is_atomic:
            return of.parts[1]
        try:
            if index is not None:
                data_types.common_type(of.parts[0], index, strings_convert=False)
        except Incompatible:
            raise self.mismatch(f"A key of {_text(node.operand)} is {of.parts[0]}, not {index}.", node) from None
        return of.parts[1]


def number_type(node: Number) -> DataType:
    """Returns the type of an unsigned number: INT, BIGINT or DECIMAL by size; DECIMAL with a point; DOUBLE with e."""
    if node.suffix in _SUFFIX_TYPES:
        return DataType(_SUFFIX_TYPES[node.suffix])
    if "e" in node.text.lower():
        return DOUBLE
    if node.is_integer and node.suffix != "BD":
        return _integer_type(int(node.text), node.text)
    whole, _, fraction = node.text.partition(".")
    digits = len((whole + fraction).lstrip("0"))
    return decimal(max(digits, len(fraction), 1), len(fraction))


def convertible(source: DataType, target: DataType) -> bool:
    """Whether Spark accepts a cast between these types, which may be nested."""
    if source.is_nested and target.name is TypeName.STRING:
        return True
    if source.is_nested or target.is_nested:
        if source.name is TypeName.NULL:
            return True
        pairs = zip(source.parts, target.parts, strict=False)
        return (
            source.name is target.name
            and len(source.parts) == len(target.parts)
            and all(convertible(*pair) for pair in pairs)
        )
    return castable(source.name, target.name)


def cast_advice(one: DataType, other: DataType) -> str:
    """Returns the sentence that says which casts give values of these types a common one."""
    if convertible(one, other) or convertible(other, one):
        return "CAST one of them."
    return "CAST both to STRING."


def refused_arguments(name: str, types: Types) -> str:
    """Returns the message for arguments that fit no call of the function `name`."""
    found = ", ".join(str(type_) for type_ in types)
    if name == "from_json":
        return (
            "The schema of from_json must be a string literal such as 'a INT, b STRING' or 'ARRAY<INT>', with types "
            "that columns may have."
        )
    if name in {"named_struct", "map"}:
        names = "names, which are string literals," if name == "named_struct" else "keys"
        return f"{name} takes pairs of {names} and values of one type each, not {found}."
    if name in {"aggregate", "reduce"}:
        return f"The lambda of {name} returns {types[2]}, but the start value is {types[1]}. CAST the start value."
    if name == "from_csv":
        return "The schema of from_csv must be a string literal such as 'a INT, b STRING', without nested types."
    if name in {"schema_of_json", "schema_of_csv"}:
        return f"{name} takes a string literal."
    if name == "to_csv":
        return f"to_csv takes a structure, not {found}. Write named_struct('a', x)."
    if name.startswith("vector_"):
        return f"{name} takes arrays of FLOAT, not {found}. CAST them to ARRAY<FLOAT>, and numbers to FLOAT."
    if name in {"filter", "exists", "forall", "map_filter", "any_match"} and len(types) > 1:
        return f"The lambda of {name} must return a condition, but returns {types[1]}. Write for example x -> x > 1."
    if name in {"hash", "xxhash64"}:
        return f"{name} does not take a map ({found}). Write map_entries(m)."
    if name in _NESTED_NAMES:
        return f"{name} does not take arguments of these types: {found}. CAST them."
    return f"The arguments of {name} have no common type: {found}. CAST them to one type."


def castable(source: TypeName, target: TypeName) -> bool:
    """Whether Spark accepts a cast between these types; it may still fail for single values at run time."""
    if source is target or source is TypeName.NULL or source is TypeName.STRING or target is TypeName.STRING:
        return True
    if source is TypeName.BOOLEAN:
        return target in NUMERIC
    if source in NUMERIC:
        return target in NUMERIC or target in {TypeName.BOOLEAN, TypeName.TIMESTAMP}
    if source is TypeName.TIMESTAMP:
        return target in NUMERIC or target in TEMPORAL
    return source in TEMPORAL and target in TEMPORAL


def _integer_type(value: int, text: str) -> DataType:
    if -(1 << 31) <= value < 1 << 31:
        return INT
    if -(1 << 63) <= value < 1 << 63:
        return BIGINT
    return decimal(len(text.lstrip("0")), 0)


def _narrow(node: Expression, type_: DataType) -> DataType:
    # With a decimal as other operand, an integer literal has its own number of digits, not that of its type.
    if isinstance(node, Negation) and isinstance(node.operand, Number):
        node = node.operand
    if isinstance(node, Number) and node.is_integer:
        return decimal(max(len(node.text.lstrip("0")), 1), 0)
    return type_


def _is_text(left: DataType | None, right: DataType | None) -> bool:
    return any(type_ is not None and type_.name is not TypeName.BINARY for type_ in (left, right))


def _part_of(node: Expression, type_: DataType) -> str:
    """Returns an example of an expression for a part of a nested value."""
    text = _text(node)
    if type_.name is TypeName.STRUCT and type_.labels:
        return f"{text}.{type_.labels[0]}"
    return f"element_at({text}, 1)" if type_.name is TypeName.ARRAY else f"map_values({text})[0]"


def _text(node: Expression) -> str:
    text = render(node).replace("`", "")
    return text if len(text) <= 60 else text[:57] + "…"

"""Renders expression trees as canonical Spark SQL, and defines `Scalar`, a checked expression with its type.

The text is generated from the tree alone, so no text of a client reaches Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import assert_never

from service.contract.query import AggregateFunction
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
    FrameBound,
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
    OrderKey,
    Over,
    String,
    Test,
    Variable,
    columns_of,
    walk,
)
from service.sql.types.data_types import DataType

# Operator precedence, lowest first. An operand with a lower precedence than its place requires gets parentheses.
_OR, _AND, _NOT, _PREDICATE, _BIT_OR, _BIT_XOR, _BIT_AND, _SUM, _PRODUCT, _UNARY, _ATOM = range(11)
_ARITHMETIC = {
    "|": _BIT_OR,
    "^": _BIT_XOR,
    "&": _BIT_AND,
    **dict.fromkeys(("+", "-", "||"), _SUM),
    **dict.fromkeys(("*", "/", "%", "DIV"), _PRODUCT),
}

# `$` is escaped because Spark replaces `${env:…}` by the worker's environment everywhere, also in strings.
_ESCAPES = {"$": "\\u0024", "\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\x1a": "\\Z"}


def quoted(name: str) -> str:
    """Returns `name` as a quoted Spark identifier."""
    return "`" + name.replace("`", "``") + "`"


def string_literal(value: str) -> str:
    """Returns a Spark string literal whose value is exactly `value`.

    Control characters are written as `\\uXXXX`; a backslash before `%` or `_` is doubled like any other.
    """
    parts = []
    for character in value:
        if character in _ESCAPES:
            parts.append(_ESCAPES[character])
        elif ord(character) < 0x20 or 0x7F <= ord(character) <= 0x9F or 0xD800 <= ord(character) <= 0xDFFF:
            parts.append(f"\\u{ord(character):04x}")
        else:
            parts.append(character)
    return "'" + "".join(parts) + "'"


def render(node: Expression) -> str:
    """Returns the canonical text of a tree, resolved or not."""
    writer = _Writer()
    writer.write(node, _OR)
    return "".join(writer.parts)


class _Writer:
    def __init__(self) -> None:
        self.parts: list[str] = []
        self.add = self.parts.append
        self._variables: Mapping[str, str] = {}

    def write(self, node: Expression, place: int) -> None:
        if _binding(node) < place:
            self.add("(")
            self._bare(node)
            self.add(")")
        else:
            self._bare(node)

    def _list(self, nodes: tuple[Expression, ...], separator: str = ", ", place: int = _OR) -> None:
        for index, node in enumerate(nodes):
            if index:
                self.add(separator)
            self.write(node, place)

    def _wrapped(self, prefix: str, nodes: tuple[Expression, ...]) -> None:
        self.add(prefix + "(")
        self._list(nodes)
        self.add(")")

    def _bare(self, node: Expression) -> None:
        match node:
            case Name(qualifier, name):
                self.add((quoted(qualifier) + "." if qualifier is not None else "") + quoted(name))
            case Column(name):
                self.add(quoted(name))
            case GetField(operand, name):
                self.write(operand, _ATOM)
                self.add("." + quoted(name))
            case Element(operand, index):
                self.write(operand, _ATOM)
                self.add("[")
                self.write(index, _OR)
                self.add("]")
            case Variable(name):
                self.add(quoted(self._variables.get(name, name)))
            case Lambda():
                self._lambda(node)
            case Null():
                self.add("NULL")
            case Boolean(value):
                self.add("TRUE" if value else "FALSE")
            case Number(text, suffix):
                self.add(text + suffix)
            case String(value):
                self.add(string_literal(value))
            case Binary(digits):
                self.add(f"X'{digits}'")
            case Interval(value, unit):
                self.add(f"INTERVAL {string_literal(value)} {unit}")
            case Keyword(text):
                self.add(text)
            case Aggregate():
                self._aggregate(node)
            case Over():
                self._over(node)
            case Case():
                self._case(node)
            case Cast(operand, type_, tries):
                self.add("TRY_CAST(" if tries else "CAST(")
                self.write(operand, _OR)
                self.add(f" AS {type_})")
            case Call(name, arguments):
                self._wrapped(name, arguments)
            case Extract(part, operand):
                self.add(f"EXTRACT({part} FROM ")
                self.write(operand, _OR)
                self.add(")")
            case _:
                self._operator(node)

    def _operator(
        self,
        node: Negation | BitwiseNot | Not | Arithmetic | Comparison | Connective | Test | InList | Between | Like,
    ) -> None:
        match node:
            case Negation(operand):
                # Any other operand needs parentheses: `--` would begin a comment.
                self.add("-")
                self.write(operand, _ATOM)
            case BitwiseNot(operand):
                self.add("~")
                self.write(operand, _ATOM)
            case Not(operand):
                self.add("NOT ")
                self.write(operand, _PREDICATE)
            case Arithmetic(operator, left, right):
                binding = _ARITHMETIC[operator]
                self.write(left, binding)
                self.add(f" {operator} ")
                self.write(right, binding + 1)
            case Comparison(operator, left, right):
                self.write(left, _SUM)
                self.add(f" {operator} ")
                self.write(right, _SUM)
            case Connective(operator, terms):
                self._list(terms, f" {operator} ", (_OR if operator == "OR" else _AND) + 1)
            case Test(operand, what):
                self.write(operand, _SUM)
                self.add(f" IS {what}")
            case InList(operand, items):
                self.write(operand, _SUM)
                self._wrapped(" IN ", items)
            case Between(operand, low, high):
                self.write(operand, _SUM)
                self.add(" BETWEEN ")
                self.write(low, _SUM)
                self.add(" AND ")
                self.write(high, _SUM)
            case Like(operator, operand, pattern, escape):
                self.write(operand, _SUM)
                self.add(f" {operator} ")
                self.write(pattern, _SUM)
                if escape is not None:
                    self.add(f" ESCAPE {string_literal(escape)}")
            case _:
                assert_never(node)

    def _lambda(self, node: Lambda) -> None:
        """Writes a lambda. Its parameters get names that no column in it has: Spark would take the column for one."""
        outer = self._variables
        taken = {name.casefold() for name in _names_in(node.body)} | set(outer.values())
        names = []
        for name in node.parameters:
            while name in taken:
                name += "_"
            taken.add(name)
            names.append(name)
        written = ", ".join(map(quoted, names))
        self.add(f"({written}) -> " if len(names) > 1 else f"{written} -> ")
        self._variables = {**outer, **dict(zip(node.parameters, names, strict=True))}
        self.write(node.body, _OR)
        self._variables = outer

    def _case(self, node: Case) -> None:
        self.add("CASE")
        if node.operand is not None:
            self.add(" ")
            self.write(node.operand, _OR)
        for when, then in node.branches:
            self.add(" WHEN ")
            self.write(when, _OR)
            self.add(" THEN ")
            self.write(then, _OR)
        if node.default is not None:
            self.add(" ELSE ")
            self.write(node.default, _OR)
        self.add(" END")

    def _aggregate(self, node: Aggregate) -> None:
        self.add(node.function.value + ("(DISTINCT " if node.distinct else "("))
        if node.arguments:
            self._list(node.arguments)
        elif node.function is AggregateFunction.COUNT:
            self.add("*")
        within_group = node.function is AggregateFunction.LISTAGG
        if node.order_by is not None:
            self.add(") WITHIN GROUP (ORDER BY " if within_group else " ORDER BY ")
            self.write(node.order_by, _OR)
            self.add(" DESC" if node.descending else "")
        self.add(")")
        if node.filter is not None:
            self.add(" FILTER (WHERE ")
            self.write(node.filter, _OR)
            self.add(")")

    def _over(self, node: Over) -> None:
        if node.function == AggregateFunction.COUNT and not node.arguments:
            self.add(f"{node.function}(*)")
        else:
            self._wrapped(node.function, node.arguments)
        if node.function == AggregateFunction.LISTAGG and not node.order_by:
            # Without an order of the window, the values are sorted.
            self.add(" WITHIN GROUP (ORDER BY ")
            self.write(node.arguments[0], _OR)
            self.add(")")
        self._filter(node.filter)
        self.add(" IGNORE NULLS OVER (" if node.ignores_nulls else " OVER (")
        separator = ""
        if node.partition_by:
            self.add("PARTITION BY ")
            self._list(node.partition_by)
            separator = " "
        for index, key in enumerate(node.order_by):
            self.add(", " if index else f"{separator}ORDER BY ")
            self._order_key(key)
            separator = " "
        if node.frame is not None:
            self.add(f"{separator}{node.frame.unit} BETWEEN ")
            self._frame_bound(node.frame.start)
            self.add(" AND ")
            self._frame_bound(node.frame.end)
        self.add(")")

    def _order_key(self, key: OrderKey) -> None:
        self.write(key.expression, _OR)
        self.add(" DESC" if key.descending else "")
        # Spark's default is NULLS FIRST for an ascending order, and NULLS LAST for a descending one.
        if key.nulls_first is key.descending:
            self.add(" NULLS FIRST" if key.nulls_first else " NULLS LAST")

    def _frame_bound(self, bound: FrameBound) -> None:
        if bound.offset is not None:
            self.write(bound.offset, _OR)
            self.add(" ")
        elif bound.side != "CURRENT ROW":
            self.add("UNBOUNDED ")
        self.add(bound.side)

    def _filter(self, condition: Expression | None) -> None:
        if condition is not None:
            self.add(" FILTER (WHERE ")
            self.write(condition, _OR)
            self.add(")")


def _names_in(tree: Expression) -> Iterator[str]:
    """Yields the first part of each name that Spark would resolve in `tree`."""
    for part in walk(tree):
        if isinstance(part, Name):
            yield part.name if part.qualifier is None else part.qualifier
        elif isinstance(part, Column):
            yield part.name


def _binding(node: Expression) -> int:
    match node:
        case Connective(operator):
            return _OR if operator == "OR" else _AND
        case Not():
            return _NOT
        case Comparison() | Test() | InList() | Between() | Like():
            return _PREDICATE
        case Arithmetic(operator):
            return _ARITHMETIC[operator]
        case Negation() | BitwiseNot() | Interval():
            return _UNARY
        case _:
            return _ATOM


@dataclass(frozen=True, eq=False)
class Scalar:
    """An expression with every column resolved, and its type. Scalars are equal if their text and type are.

    A client's expression has passed the allow-list (`service.sql.expressions.compile_expression`); rules build others
    from it. `type` is None if it is not known before the query runs. `longest` is an upper bound of the bytes of a
    value (see `service.sql.expressions.limits`), `size` the number of nodes with columns of derived tables expanded.
    """

    tree: Expression
    type: DataType | None
    longest: int | None = field(default=None, repr=False)
    size: int = field(default=1, repr=False)

    @cached_property
    def sql(self) -> str:
        """Canonical Spark SQL; every column is back-quoted under its full output name (`` `o.amount` ``)."""
        return render(self.tree)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The names of its columns, in order of first appearance."""
        return columns_of(self.tree)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Scalar) and self.sql == other.sql and self.type == other.type

    def __hash__(self) -> int:
        return hash(self.sql)

    def __str__(self) -> str:
        return self.sql.replace("`", "")

    @property
    def column(self) -> str | None:
        """The name of the column if the expression is a single column; else None."""
        return self.tree.name if isinstance(self.tree, Column) else None


def column(name: str, type_: DataType | None) -> Scalar:
    """Returns a reference to the output column `name`."""
    return Scalar(Column(name, type_), type_)

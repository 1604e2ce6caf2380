"""Reads access to parts of nested values, lambdas and nested types from sqlglot's trees."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlglot import exp

from service.sql.expressions.nodes import Call, Element, Expression, GetField, Lambda, Name, String, Variable
from service.sql.parser import CONTINUES, TREE, Text
from service.sql.types.data_types import MAX_TYPE_DEPTH, DataType, Field, array, mapping, struct
from service.sql.types.lambdas import LAMBDAS, MAX_LAMBDA_DEPTH

if TYPE_CHECKING:
    from collections.abc import Iterator

_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_ARROW_HINT = f"Write it as an argument of one of {', '.join(sorted(LAMBDAS))}."


class NestedReader:
    """Reads the nested parts of one text. `read` reads any expression."""

    def __init__(self, source: Text, read: Callable[[exp.Expr], Expression]) -> None:
        self._source = source
        self._read = read
        self._lambdas: list[tuple[str, ...]] = []

    @property
    def in_lambda(self) -> bool:
        """Whether the body of a lambda is being read."""
        return bool(self._lambdas)

    def name(self, parts: Sequence[exp.Expr], at: int | None) -> Expression | None:
        """Returns the tree of a name with dots; None if a part is not a name."""
        names = [part.name for part in parts if isinstance(part, exp.Identifier)]
        if len(names) != len(parts):
            return None
        if self._is_parameter(names[0]):
            tree: Expression = Variable(names[0].lower(), at)
            rest = names[1:]
        else:
            tree = Name(names[0], names[1], at) if len(names) > 1 else Name(None, names[0], at)
            rest = names[2:]
        for name in rest:
            tree = self._field(tree, name, at)
        return tree

    def dot(self, node: exp.Dot, at: int | None) -> Expression | None:
        """Returns the tree of `operand.name`; None if it has another form."""
        if not isinstance(node.expression, exp.Identifier):
            return None
        return self._field(self._read(node.this), node.expression.name, at)

    def parameter(self, node: exp.Identifier, at: int | None) -> Expression | None:
        """Returns a parameter of a lambda; None if `node` is none."""
        return Variable(node.name.lower(), at) if self._is_parameter(node.name) else None

    def bracket(self, node: exp.Bracket, at: int | None) -> Expression | None:
        """Returns the tree of `operand[index]`; None for a slice, or several indexes."""
        if len(node.expressions) != 1 or isinstance(node.expressions[0], exp.Slice):
            return None
        return Element(self._read(node.this), self._read(node.expressions[0]), at)

    def argument(self, function: str, index: int, node: exp.Expr, at: int | None) -> Expression:
        """Reads an argument of `function`, which may be a lambda. Raises SpecError."""
        shape = LAMBDAS.get(function, {}).get(index)
        if shape is None and isinstance(node, exp.Lambda):
            raise self._source.unsupported("A lambda function", at=at, hint=_ARROW_HINT)
        if shape is None:
            return self._read(node)
        if not isinstance(node, exp.Lambda):
            hint = f"Write a lambda of {shape.arity} parameters, such as {_example(shape.most)}."
            raise self._source.unsupported(f"Argument {index + 1} of {function} that is not a lambda", at=at, hint=hint)
        names = tuple(part.name.lower() for part in node.expressions)
        if not shape.least <= len(names) <= shape.most or len(set(names)) < len(names):
            hint = f"It has {shape.arity} parameters with different names, such as {_example(shape.most)}."
            raise self._source.unsupported(f"This lambda of {function}", at=at, hint=hint)
        if not all(map(_PARAMETER.fullmatch, names)):
            hint = "Use letters (A to Z), digits and _."
            raise self._source.unsupported("This name of a parameter of a lambda", at=at, hint=hint)
        with self._inside(names, at):
            return Lambda(names, self._read(node.this))

    def structure(self, nodes: Sequence[exp.Expr], at: int | None) -> Call:
        """Returns `struct(a, b AS c)` as a call of `named_struct`, with Spark's names of the fields."""
        arguments: list[Expression] = []
        index = 0
        for node in nodes:
            # Spark counts a star as one.
            index += CONTINUES not in node.meta
            alias = node.args["alias"] if isinstance(node, exp.Alias) else None
            value = self._read(node.this if isinstance(node, exp.Alias) else node)
            name = alias.name if isinstance(alias, exp.Identifier) else f"col{index}"
            if alias is None and isinstance(value, Name | GetField | Variable):
                name = value.name
            if TREE in node.meta:
                name = node.name
            arguments += [String(self._checked(name, at)), value]
        return Call("named_struct", tuple(arguments), at)

    def type(self, node: exp.DataType, read: Callable[[exp.DataType], DataType], at: int | None) -> DataType | None:
        """Returns a nested type, whose parts `read` reads; None if `node` is another type. Raises SpecError."""
        parts = list(node.expressions)
        found: DataType | None = None
        if node.this is exp.DType.ARRAY and len(parts) == 1:
            found = array(read(parts[0]))
        elif node.this is exp.DType.MAP and len(parts) == 2:
            found = mapping(read(parts[0]), read(parts[1]))
        elif node.this is exp.DType.STRUCT and parts and all(isinstance(part, exp.ColumnDef) for part in parts):
            found = struct([Field(self._checked(part.name, at), read(part.args["kind"])) for part in parts])
        if found is not None and found.depth > MAX_TYPE_DEPTH:
            detail = f"A type of more than {MAX_TYPE_DEPTH} levels"
            raise self._source.unsupported(detail, at=at, hint="Convert the parts one by one.")
        return found

    def _field(self, operand: Expression, name: str, at: int | None) -> GetField:
        return GetField(operand, self._checked(name, at), at)

    def _checked(self, name: str, at: int | None) -> str:
        # Spark replaces `${env:…}` everywhere, and names cannot escape it.
        if "${" in name or not name:
            raise self._source.unsupported(f"The name {name} of a field", at=at, hint="Rename it without '${'.")
        return name

    def _is_parameter(self, name: str) -> bool:
        return any(name.lower() in names for names in self._lambdas)

    @contextmanager
    def _inside(self, names: tuple[str, ...], at: int | None) -> Iterator[None]:
        if len(self._lambdas) == MAX_LAMBDA_DEPTH:
            hint = "Compute the inner part in a derived table."
            raise self._source.unsupported(f"More than {MAX_LAMBDA_DEPTH} lambdas inside each other", at=at, hint=hint)
        self._lambdas.append(names)
        yield
        self._lambdas.pop()


def zipped(call: Call) -> Call:
    """Returns `arrays_zip(a, b)` with Spark's names of the fields: those of columns and fields, else their places.

    In a plan, columns have other names, so the elements are named here.
    """
    values = tuple(Call("coalesce", (argument,)) for argument in call.arguments)
    item = Variable("item")
    pairs: list[Expression] = []
    for index, argument in enumerate(call.arguments):
        name = argument.name if isinstance(argument, Name | GetField | Variable) else str(index)
        pairs += [String(name), GetField(item, str(index))]
    item_with_names = Lambda(("item",), Call("named_struct", tuple(pairs)))
    return Call("transform", (replace(call, arguments=values), item_with_names), call.at)


def _example(parameters: int) -> str:
    return {1: "x -> x > 0", 2: "(x, y) -> x + y"}.get(parameters, "(k, x, y) -> x + y")

"""What the table of functions says of a function: the types of its arguments, and the rule for its result's type."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from service.sql.expressions.nodes import Expression, Negation, Number
from service.sql.types.data_types import ATOMIC, INTEGRAL, NESTED, NUMERIC, TEMPORAL, DataType, TypeName

Types = tuple[DataType | None, ...]
Arguments = tuple[Expression, ...]


@dataclass(frozen=True)
class Result:
    """The result type of a function, as a rule over its arguments; `text` describes it for the documentation."""

    text: str
    of: Callable[[Types, Arguments], DataType | None]

    def __call__(self, types: Types, arguments: Arguments) -> DataType | None:
        """Returns the type; None if it is not known. Raises Incompatible if the arguments have no common type."""
        return self.of(types, arguments)


class Kind(Enum):
    """The types that an argument may have. As in Spark, a string is converted to any atomic one at run time. ANY are
    the atomic types, VALUE are these and the nested types, and ALL also those that only Spark has.
    """

    ANY = ATOMIC | {TypeName.NULL}
    VALUE = ATOMIC | NESTED | {TypeName.NULL}
    ALL = frozenset(TypeName)
    ARRAY = frozenset({TypeName.ARRAY, TypeName.NULL})
    MAP = frozenset({TypeName.MAP, TypeName.NULL})
    COLLECTION = frozenset({TypeName.ARRAY, TypeName.MAP, TypeName.NULL})
    DOCUMENT = NESTED
    LAMBDA = frozenset[TypeName]()
    NUMBER = NUMERIC | {TypeName.STRING, TypeName.NULL}
    TIME = TEMPORAL | {TypeName.STRING, TypeName.NULL}
    BOOLEAN = frozenset({TypeName.BOOLEAN, TypeName.STRING, TypeName.NULL})
    DAYS = frozenset({TypeName.TINYINT, TypeName.SMALLINT, TypeName.INT, TypeName.STRING, TypeName.NULL})
    SECONDS = NUMERIC | {TypeName.NULL}
    FORMAT = frozenset({TypeName.STRING, TypeName.NULL})
    BYTES = frozenset({TypeName.BINARY, TypeName.STRING, TypeName.NULL})
    SKETCH = frozenset({TypeName.BINARY, TypeName.NULL})
    INTEGER = INTEGRAL | {TypeName.NULL}
    BITS = INTEGRAL | {TypeName.BOOLEAN, TypeName.NULL}
    DAY = frozenset({TypeName.DATE, TypeName.NULL})
    INSTANT = frozenset({TypeName.TIMESTAMP, TypeName.TIMESTAMP_NTZ, TypeName.NULL})
    PRINTABLE = NUMERIC | TEMPORAL | {TypeName.STRING, TypeName.BINARY, TypeName.NULL}

    def admits(self, type_: DataType) -> bool:
        """Whether Spark accepts an argument of this type, unchanged or converted."""
        return type_.name in self.value


@dataclass(frozen=True)
class Function:
    """`kinds` are those of the arguments; the last one repeats. `most` is None if there is no upper bound."""

    name: str
    least: int
    most: int | None
    kinds: tuple[Kind, ...]
    result: Result

    def accepts(self, arguments: int) -> bool:
        """Whether a call may have this number of arguments."""
        return self.least <= arguments and (self.most is None or arguments <= self.most)

    @property
    def arity(self) -> str:
        """The number of arguments, for messages: `2`, `1 to 3`, `at least 1`."""
        if self.most is None:
            return f"at least {self.least}"
        return str(self.least) if self.least == self.most else f"{self.least} to {self.most}"

    def kind(self, index: int) -> Kind:
        """Returns the kind of the argument at `index`."""
        return self.kinds[min(index, len(self.kinds) - 1)]


def always(type_: DataType) -> Result:
    """Returns the rule of a function that always has this type."""
    return Result(str(type_), lambda _types, _arguments: type_)


def by_types(text: str, rule: Callable[[Types], DataType | None]) -> Result:
    """Returns a rule over the types of the arguments."""
    return Result(text, lambda types, _arguments: rule(types))


def rows(names: str, least: int, most: int | None, kinds: Iterable[Kind], result: Result) -> dict[str, Function]:
    """Returns rows of the table for functions, named in `names`, that only differ in their names."""
    return {name: Function(name, least, most, tuple(kinds), result) for name in names.split()}


def literal_integer(node: Expression, digits: int = 9) -> int | None:
    """Returns the value of an integer literal of up to `digits` digits, with its sign; None for other expressions."""
    if isinstance(node, Negation):
        inner = literal_integer(node.operand, digits)
        return -inner if inner is not None else None
    return int(node.text) if isinstance(node, Number) and node.is_integer and len(node.text) <= digits else None

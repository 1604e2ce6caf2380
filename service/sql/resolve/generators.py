"""Binds the functions that make several rows of one (`explode` and others): their columns and the types of these."""

from __future__ import annotations

from collections.abc import Sequence

from service.contract.problems import SpecError
from service.contract.query import GeneratorFunction, Lateral
from service.sql.expressions.compile_expression import TableScope, full_name, resolve, scalar_of
from service.sql.expressions.reader import read_expression
from service.sql.expressions.scalar import Scalar
from service.sql.parser import Text
from service.sql.resolve.bound import BoundGenerator
from service.sql.types.data_types import INT, STRING, UNKNOWN, DataType, Field, Incompatible, Schema, TypeName, widest
from service.sql.types.inference import Typing
from service.sql.types.nested_functions import MAX_ELEMENTS
from service.sql.types.signatures import literal_integer

Types = list[DataType | None]


def bind_generator(
    generator: Lateral, sources: Sequence[Text], scope: TableScope, plan_name: str, pointer: str
) -> tuple[BoundGenerator, TableScope]:
    """Returns `generator` over the columns of `scope`, and the scope of its own columns. `sources` are the texts of its
    arguments, `plan_name` its alias in the plan.

    Raises SpecError `type_mismatch`, `duplicate_column`, `unsupported_construct`, and what expressions raise.
    """
    trees = [resolve(read_expression(source), scope, source) for source in sources]
    for tree, source in zip(trees, sources, strict=True):
        Typing(source).value(tree)
    arguments = tuple(scalar_of(tree, source) for tree, source in zip(trees, sources, strict=True))
    types = _types(generator, arguments, sources[0])
    names = generator.columns
    if len(types) != len(names):
        made_columns, wanted = ("1 column", "1 name") if len(types) == 1 else (f"{len(types)} columns",) * 2
        wanted = wanted.replace("columns", "names")
        example = ", ".join(
            ("key", "value") if len(types) == 2 else (f"c{place}" for place in range(1, len(types) + 1))
        )
        detail = (
            f"{generator.function}({sources[0].text.replace('`', '')}) makes {made_columns}. Write {wanted} after AS, "
            f"not {len(names)}: ({example})."
        )
        raise SpecError.of("unsupported_construct", detail, pointer=pointer)
    for index, name in enumerate(names):
        if name.casefold() in {other.casefold() for other in names[:index]}:
            detail = f"Two columns are called {name} (case is ignored). Rename one of them."
            raise SpecError.of("duplicate_column", detail, pointer=pointer)
    pairs = zip(names, types, strict=True)
    columns = tuple(Field(full_name(plan_name, name), type_ or UNKNOWN) for name, type_ in pairs)
    bound = BoundGenerator(generator.function, arguments, columns, generator.outer)
    schema = Schema(tuple(Field(name, field.type) for name, field in zip(names, columns, strict=True)))
    longest = max(argument.longest or 0 for argument in arguments) or None
    made = TableScope(
        {generator.alias: schema},
        plan_names={generator.alias: plan_name},
        longest={} if longest is None else {field.name: longest for field in columns},
    )
    return bound, made


def _types(generator: Lateral, arguments: tuple[Scalar, ...], source: Text) -> Types:
    """Returns the types of the columns; as many as there are names if the argument's type is not known."""
    function, first = generator.function, arguments[0].type
    if function is GeneratorFunction.STACK:
        return _stacked(arguments, source)
    if function is GeneratorFunction.JSON_TUPLE:
        if len(arguments) < 2:
            raise source.unsupported("json_tuple without a field", hint="Write json_tuple(x, 'a', 'b').")
        return [STRING for _ in arguments[1:]]
    if len(arguments) != 1:
        raise source.unsupported(f"{function} with {len(arguments)} arguments", hint="It takes one, an array or a map.")
    if first is None:
        return [None for _ in generator.columns]
    found = _elements(function, first)
    if found is None:
        what = "an array of structures" if function is GeneratorFunction.INLINE else "an array or a map"
        detail = f"{function} takes {what}, but {source.text.replace('`', '')} is {first}."
        raise Typing(source).mismatch(detail, arguments[0].tree)
    return found


def _elements(function: GeneratorFunction, type_: DataType) -> Types | None:
    if function is GeneratorFunction.INLINE:
        is_fit = type_.name is TypeName.ARRAY and type_.parts[0].name is TypeName.STRUCT
        return [*type_.parts[0].parts] if is_fit else None
    if type_.name not in {TypeName.ARRAY, TypeName.MAP}:
        return None
    place = (INT,) if function is GeneratorFunction.POSEXPLODE else ()
    return [*place, *type_.parts]


def _stacked(arguments: tuple[Scalar, ...], source: Text) -> Types:
    count = literal_integer(arguments[0].tree)
    values = arguments[1:]
    if count is None or not 1 <= count <= MAX_ELEMENTS or not values:
        hint = f"Write stack(2, a, b, c, d), with an integer literal from 1 to {MAX_ELEMENTS} and values."
        raise source.unsupported("This call of stack", hint=hint)
    width = -(-len(values) // count)
    found: Types = []
    for place in range(width):
        column = [value.type for value in values[place::width]]
        try:
            found.append(widest(column, strings_convert=False))
        except Incompatible:
            texts = ", ".join(map(str, column))
            detail = f"The values of column {place + 1} of stack have no common type: {texts}. CAST them to one type."
            raise Typing(source).mismatch(detail, arguments[0].tree) from None
    return found

"""Functions of XML and CSV texts, of vectors (arrays of FLOAT) and of sketches, which are BINARY values."""

from __future__ import annotations

from dataclasses import replace

from service.sql.expressions.nodes import Call, Case, Expression, String, Variable
from service.sql.types.data_types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DOUBLE,
    FLOAT,
    INT,
    STRING,
    DataType,
    Incompatible,
    TypeName,
    array,
)
from service.sql.types.nested_functions import computed_once, json_type
from service.sql.types.signatures import Arguments, Function, Kind, Result, Types, always, by_types, rows

_SMALLINT = DataType(TypeName.SMALLINT)
PATHS = {
    "xpath": array(STRING),
    "xpath_boolean": BOOLEAN,
    "xpath_short": _SMALLINT,
    "xpath_int": INT,
    "xpath_long": BIGINT,
    "xpath_float": FLOAT,
    "xpath_double": DOUBLE,
    "xpath_number": DOUBLE,
    "xpath_string": STRING,
}
"""The types of the functions that read XML."""
_VECTOR = array(FLOAT)
_SKETCHED = {"bigint": BIGINT, "float": FLOAT, "double": DOUBLE}
"""The types of the values in sketches of quantiles."""


def guarded_path(call: Call) -> Expression:
    """Returns a call of a function of `PATHS` that fails for a document with a type declaration: the declaration may
    name an address, from which Spark would load it.
    """
    document, *path = call.arguments
    message = String(f"{call.name} does not read XML with <!DOCTYPE.")

    def checked(text: Variable) -> Expression:
        is_declared = Call("contains", (text, String("<!DOCTYPE")))
        return Case(None, ((is_declared, Call("raise_error", (message,))),), text)

    return replace(call, arguments=(computed_once(document, checked), *path))


def _of_record(_types: Types, arguments: Arguments) -> DataType:
    schema = arguments[1]
    if not isinstance(schema, String):
        raise Incompatible
    found = json_type(schema.value)
    if found.name is not TypeName.STRUCT or not all(part.is_atomic for part in found.parts):
        raise Incompatible
    return found


def _written(types: Types) -> DataType:
    if types[0] is not None and types[0].name is not TypeName.STRUCT:
        raise Incompatible
    return STRING


def _described(_types: Types, arguments: Arguments) -> DataType:
    if not isinstance(arguments[0], String) or not arguments[0].value:
        raise Incompatible
    return STRING


def _over_vectors(result: DataType, vectors: int) -> Result:
    def of(types: Types) -> DataType:
        if any(type_ is not None and type_ != _VECTOR for type_ in types[:vectors]):
            raise Incompatible
        if any(type_ is not None and type_ != FLOAT for type_ in types[vectors:]):
            raise Incompatible
        return result

    return by_types(str(result), of)


def _each(type_: DataType) -> Result:
    def of(_types: Types, arguments: Arguments) -> DataType:
        wanted = arguments[1]
        return array(type_) if isinstance(wanted, Call) and wanted.name == "array" else type_

    return Result(f"{type_}, or an array of it", of)


def _sketches_of(name: str, type_: DataType) -> dict[str, Function]:
    both = (Kind.BYTES, Kind.VALUE)
    return {
        **rows(f"kll_sketch_get_n_{name}", 1, 1, (Kind.BYTES,), always(BIGINT)),
        **rows(f"kll_sketch_get_quantile_{name}", 2, 2, both, _each(type_)),
        **rows(f"kll_sketch_get_rank_{name}", 2, 2, both, _each(DOUBLE)),
        **rows(f"kll_sketch_merge_{name}", 2, 2, (Kind.BYTES,), always(BINARY)),
        **rows(f"kll_sketch_to_string_{name}", 1, 1, (Kind.BYTES,), always(STRING)),
    }


_TEXTS, _VECTORS, _TWO_SKETCHES = (Kind.FORMAT,), (Kind.ARRAY,), (Kind.SKETCH, Kind.SKETCH, Kind.VALUE)
_RECORD = Result("the structure that the second argument, a string literal, names", _of_record)

DOCUMENT_GROUPS: dict[str, dict[str, Function]] = {
    "XML and CSV": {
        **{name: Function(name, 2, 2, _TEXTS, always(type_)) for name, type_ in PATHS.items()},
        **rows("from_csv", 2, 2, _TEXTS, _RECORD),
        **rows("to_csv", 1, 1, (Kind.DOCUMENT,), by_types("STRING", _written)),
        **rows("schema_of_csv", 1, 1, _TEXTS, Result("STRING; the argument is a string literal", _described)),
    },
    "vectors": {
        **rows("vector_cosine_similarity vector_inner_product", 2, 2, _VECTORS, _over_vectors(FLOAT, 2)),
        **rows("vector_l2_distance", 2, 2, _VECTORS, _over_vectors(FLOAT, 2)),
        **rows("vector_norm", 1, 2, (Kind.ARRAY, Kind.NUMBER), _over_vectors(FLOAT, 1)),
        **rows("vector_normalize", 1, 2, (Kind.ARRAY, Kind.NUMBER), _over_vectors(_VECTOR, 1)),
    },
}
"""By the name of a group, then by lower-case name. Most arguments are texts or nested values."""
SKETCH_GROUPS: dict[str, dict[str, Function]] = {
    "sketches": {
        **rows("hll_sketch_estimate theta_sketch_estimate", 1, 1, (Kind.SKETCH,), always(BIGINT)),
        **rows("hll_union theta_union", 2, 3, _TWO_SKETCHES, always(BINARY)),
        **rows("theta_difference theta_intersection", 2, 2, (Kind.SKETCH,), always(BINARY)),
        **{key: function for name, type_ in _SKETCHED.items() for key, function in _sketches_of(name, type_).items()},
    },
}
"""By the name of a group, then by lower-case name."""

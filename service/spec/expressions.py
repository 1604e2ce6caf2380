"""A scalar expression's text, checked against the allow-list, resolved and typed: the way to a `Scalar`."""

from __future__ import annotations

from service.spec.dialect import Text
from service.spec.growth import conditions_in, expanded, longest
from service.spec.inference import Typing
from service.spec.parsing import read_expression
from service.spec.patterns import check_patterns
from service.spec.scalar import Scalar
from service.spec.scope import TableScope, resolve
from service.spec.tree import Expression


def compile_expression(text: str, scope: TableScope, pointer: str) -> Scalar:
    """The scalar that `text` means over the columns of `scope`.

    `pointer` is the JSON pointer of the text, for errors. Raises SpecError `sql_syntax`, `query_too_deep`,
    `unsupported_construct`, `unsupported_function`, `unknown_table`, `unknown_column`, `ambiguous_column`,
    `type_mismatch`.
    """
    source = Text(text, pointer)
    tree = resolve(read_expression(source), scope, source)
    return scalar_of(tree, source)


def scalar_of(tree: Expression, source: Text) -> Scalar:
    """A resolved tree as a value for the engine.

    Raises SpecError `type_mismatch`, and `unsupported_construct` for values that could grow too long and for patterns
    that could take too long, and `query_too_deep` for what grows too large once derived tables are merged.
    """
    type_ = Typing(source).type_of(tree)
    scalar = Scalar(tree, type_, longest(tree, source), expanded(tree, source))
    conditions_in(tree, source)
    check_patterns(tree, source)
    return scalar

"""Turns sqlglot trees into expression trees: the allow-list of scalar expressions. Anything not listed is refused."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import date

from sqlglot import exp

from service.contract.problems import SpecError
from service.contract.query import EXPANDED_NODES, AggregateFunction
from service.sql.expressions.calls import (
    PARTS,
    SESSION_FUNCTIONS,
    SYNONYMS,
    WINDOWS,
    AggregateReader,
    function_named,
    misplaced,
    misplaced_session,
)
from service.sql.expressions.function_forms import FORMS, WITH_UNITS, part_named, read_form, with_unit
from service.sql.expressions.interval_spans import is_interval, units_of
from service.sql.expressions.nested_reader import NestedReader, zipped
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
    Comparison,
    Connective,
    Expression,
    Extract,
    GetField,
    InList,
    Interval,
    Like,
    Name,
    Negation,
    NodeCounter,
    Not,
    Null,
    Number,
    String,
    Test,
    map_children,
)
from service.sql.expressions.window_functions import WINDOW_FUNCTIONS, WindowCallReader
from service.sql.parser import FIRST, TREE, UNPIVOT, Text, parse_expression, tokens_of
from service.sql.refusals import (
    ARGUMENTS,
    ARITHMETIC,
    COMPARISONS,
    CONSTRUCTS,
    EXTRACT_PARTS,
    HEX,
    HINTS,
    INTERVAL_HINT,
    INTERVAL_UNITS,
    INTERVAL_VALUE,
    LIKES,
    LOST,
    NUMBER,
    PARAMETER_SIGNS,
    PREDICATES,
    QUANTIFIED,
    SUFFIXED,
    SUFFIXES,
    TYPES,
    unknown_function,
    wrong_arity,
)
from service.sql.types.data_types import DATE, MAX_PRECISION, DataType, TypeName, decimal
from service.sql.types.functions import FUNCTIONS

_TAKES_A_SWITCH = frozenset({AggregateFunction.FIRST, AggregateFunction.LAST})
"""Aggregates that ignore NULLs if their second argument is TRUE."""
_CHOOSES_A_VALUE = _TAKES_A_SWITCH | {
    AggregateFunction.ANY_VALUE,
    AggregateFunction.FIRST_VALUE,
    AggregateFunction.LAST_VALUE,
}
_CALLABLE = frozenset(
    {*FUNCTIONS, *FORMS, *WINDOW_FUNCTIONS, *(name.lower() for name in (*AggregateFunction, *SYNONYMS))}
)
_SPARK_NUMBER = re.compile(r"(?<![\w`.])(\d+(?:\.\d+)?(?:E[+-]?\d+)?)(BD|D)\b")


def read_expression(source: Text) -> Expression:
    """Returns the tree of a scalar expression; parses its text, unless `source` has the tree already.

    Raises SpecError `sql_syntax`, `query_too_deep`, `unsupported_construct`, `unsupported_function`.
    """
    if source.tree is not None:
        return source.tree
    return ExpressionReader(source, aggregates=False).read(parse_expression(source))


def read_template(text: str) -> Expression:
    """Parses an expression that a rule wrote: it may call any function, and use `a.field`, D and BD.

    Raises SpecError if the text is not an expression, which is a mistake in the rule.
    """
    numbers: dict[str, Number] = {}

    def named(match: re.Match[str]) -> str:
        name = f"{match[1]}{match[2]}"
        numbers[name] = Number(match[1], match[2])
        return f"`{name}`"

    source = Text(_SPARK_NUMBER.sub(named, text), "")
    return _TemplateReader(source, numbers).read(parse_expression(source))


def position(node: exp.Expr) -> int | None:
    """Returns the smallest offset in the text of the parts of `node`; None if no part has one."""
    if FIRST in node.meta:
        return int(node.meta[FIRST])
    starts = [part.meta["start"] for part in node.walk() if "start" in part.meta]
    return min(starts) if starts else None


def placeholder(node: exp.Placeholder) -> str:
    """Returns the text of a placeholder: `:name` or `?`."""
    return f":{node.name}" if node.this else "?"


_DAY = re.compile(r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})")


class ExpressionReader:
    """Turns sqlglot nodes of one text into expression trees.

    Aggregate calls are allowed if `aggregates`; `windows` names the functions of group windows that are allowed. A
    placeholder becomes its value, or, if `names_parameters`, a column with the name of the placeholder.
    """

    def __init__(
        self, source: Text, *, aggregates: bool, windows: Collection[str] = (), names_parameters: bool = False
    ) -> None:
        self._source = source
        self._aggregates = aggregates
        self._windows = windows
        self._names_parameters = names_parameters
        self._nested = NestedReader(source, self.read)

    def read(self, node: exp.Expr | None) -> Expression:
        """Returns the tree of `node`. Raises SpecError with the construct that is not supported, and its place."""
        if node is None:
            raise self._source.error("sql_syntax", "An operand is missing.")
        if TREE in node.meta:
            tree: Expression = node.meta[TREE]
            return tree
        self.check_clauses(node)
        kind = type(node)
        if kind in ARITHMETIC:
            return Arithmetic(ARITHMETIC[kind], self.read(node.this), self.read(node.expression))
        if kind in COMPARISONS:
            return Comparison(COMPARISONS[kind], self._operand(node.this), self._operand(node.expression))
        if kind in LIKES and isinstance(node.expression, exp.Any | exp.All):
            return self._likes(node)
        if kind in LIKES:
            like = Like(LIKES[kind], self._operand(node.this), self._operand(node.expression), None)
            return Not(like) if node.args.get("negate") else like
        if isinstance(node, exp.And | exp.Or):
            return Connective(node.key.upper(), tuple(self.read(term) for term in _operands(node)))
        return self._other(node)

    def _other(self, node: exp.Expr) -> Expression:
        match node:
            case exp.Paren():
                return self.read(node.this)
            case exp.Column():
                return self._name(node)
            case exp.Literal() | exp.RawString():
                return self._literal(node)
            case exp.Placeholder() if not node.args.get("widget"):
                return self._parameter(node)
            case exp.Null():
                return Null(position(node))
            case exp.Boolean():
                return Boolean(bool(node.this), position(node))
            case exp.HexString() if HEX.fullmatch(str(node.this)):
                return Binary(str(node.this).upper())
            case exp.Concat() if all(isinstance(part, exp.Literal) and part.is_string for part in node.expressions):
                # Adjacent string literals.
                return String("".join(part.this for part in node.expressions))
            case exp.Neg():
                return self._negation(node)
            case exp.BitwiseNot():
                return BitwiseNot(self.read(node.this))
            case exp.Not():
                return Not(self.read(node.this))
            case exp.NullSafeNEQ():
                return Not(Comparison("<=>", self._operand(node.this), self._operand(node.expression)))
            case exp.Is():
                return self._test(node)
            case exp.In(expressions=[]):
                raise self._source.error("sql_syntax", "IN needs at least one value.", at=position(node))
            case exp.In():
                return InList(
                    self._operand(node.this), tuple(self._row(item) or self.read(item) for item in node.expressions)
                )
            case exp.Between():
                low, high = node.args["low"], node.args["high"]
                return Between(self._operand(node.this), self._operand(low), self._operand(high))
            case exp.Escape(this=exp.Like() | exp.ILike()):
                return self._escape(node)
            case _:
                return self._compound(node)

    def _compound(self, node: exp.Expr) -> Expression:
        match node:
            case exp.Case():
                return self._case(node)
            case exp.Cast():
                return self._cast(node)
            case exp.Interval():
                return self._interval(node)
            case exp.Extract():
                written = str(node.this.name).upper()
                part = part_named(written)
                if part is None:
                    hint = f"Use {', '.join(sorted(EXTRACT_PARTS))}, or unix_timestamp(t) for the seconds since 1970."
                    raise self._unsupported(node, f"EXTRACT({written} …)", hint)
                return Extract(part, self.read(node.expression))
            case exp.Filter():
                call = self._filtered(node)
                if call is not None:
                    return call
            case exp.WithinGroup():
                call = self._within_group(node)
                if call is not None:
                    return call
            case exp.Window() if not self._nested.in_lambda:
                reader = WindowCallReader(self._source, self.read, self.check_clauses, self._unsupported)
                return reader.call(node, position(node))
            case exp.Anonymous():
                return self._call(node)
            case exp.Tuple():
                return self._nested.structure(node.expressions, position(node))
            case exp.IgnoreNulls() | exp.RespectNulls():
                call = self._without_nulls(node)
                if call is not None:
                    return call
        found = self._part(node)
        if found is not None:
            return found
        raise self._refused(node)

    def _part(self, node: exp.Expr) -> Expression | None:
        """Returns access to a part of a nested value, or a parameter of a lambda; None for another expression."""
        match node:
            case exp.Dot():
                return self._nested.dot(node, position(node))
            case exp.Bracket():
                return self._nested.bracket(node, position(node))
            case exp.Identifier():
                return self._nested.parameter(node, position(node))
        return None

    def _refused(self, node: exp.Expr) -> SpecError:
        construct = CONSTRUCTS.get(type(node), f"The construct {node.key.upper()}")
        hint = HINTS.get(type(node), "")
        at = position(node)
        if isinstance(node, exp.Any | exp.All) and isinstance(node.this, exp.Query):
            hint = QUANTIFIED
        if isinstance(node, exp.Placeholder | exp.Parameter) and at is None:
            signs = (token.start for token in tokens_of(self._source) if token.text in PARAMETER_SIGNS)
            at = next(signs, None)
        return self._source.unsupported(construct, at=at, hint=hint)

    def _unsupported(self, node: exp.Expr, construct: str, hint: str = "") -> SpecError:
        return self._source.unsupported(construct, at=position(node), hint=hint)

    def check_clauses(self, node: exp.Expr) -> None:
        """Raises SpecError `unsupported_construct` if `node` has arguments that this module does not read."""
        allowed = ARGUMENTS.get(type(node))
        for key, value in node.args.items() if allowed is not None else ():
            if key not in (allowed or ()) and value not in (None, False, []):
                if key == "query":
                    raise self._unsupported(node, "A subquery", HINTS[exp.Subquery])
                construct, hint = LOST.get((type(node), key), (f"{node.key.upper()} with {key.upper()}", ""))
                raise self._unsupported(node, construct, hint)

    def _operand(self, node: exp.Expr) -> Expression:
        if isinstance(node, PREDICATES):
            hint = "Join the two comparisons by AND, or enclose the inner one in parentheses."
            raise self._unsupported(node, "A comparison as an operand of a comparison", hint)
        return self._row(node) or self.read(node)

    def _row(self, node: exp.Expr) -> Expression | None:
        """Returns a row value that is compared, in which names do not count; None for another expression."""
        if not isinstance(node, exp.Tuple):
            return None
        pairs = ((String(f"col{number}"), self.read(part)) for number, part in enumerate(node.expressions, start=1))
        return Call("named_struct", tuple(part for pair in pairs for part in pair), position(node))

    def _parameter(self, node: exp.Placeholder) -> Expression:
        if self._names_parameters:
            return Name(None, placeholder(node))
        literal = (self._source.literals or {}).get(node.meta["start"])
        if literal is None:
            raise self._refused(node)
        return _placed(literal, node.meta["start"])

    def _name(self, node: exp.Column) -> Expression:
        if isinstance(node.this, exp.Placeholder):
            raise self._unsupported(node, "A parameter in place of a name", "Write the name.")
        if not isinstance(node.this, exp.Identifier):
            raise self._unsupported(node, "*", "Name the columns. To count rows, write COUNT(*).")
        tree = self._nested.name(node.parts, position(node))
        if tree is None:
            raise self._unsupported(node, "A parameter in place of a name", "Write the name.")
        return tree

    def _literal(self, node: exp.Expr, *, negative: bool = False) -> Expression:
        text = str(node.this)
        if isinstance(node, exp.RawString) or node.is_string:
            return String(text, position(node))
        at, suffixed = position(node), SUFFIXED.fullmatch(text)
        if suffixed is None:
            return self._number(text, at)
        number, suffix = self._number(suffixed.group(1), at), suffixed.group(2).upper()
        type_, bits = SUFFIXES[suffix]
        # The smallest value of an integer type only fits with its sign.
        fits = int(number.text) < (1 << bits) + negative
        return Number(number.text, suffix, at) if fits else Cast(number, DataType(type_), tries=False)

    def _number(self, text: str, at: int | None) -> Number:
        if not NUMBER.fullmatch(text):
            raise self._source.error("sql_syntax", f"'{text[:40]}' is not a number.", at=at)
        if "e" in text.lower():
            if float(text) == float("inf"):
                raise self._source.error("sql_syntax", f"The number {text[:40]} is too large.", at=at)
        elif len(text.replace(".", "").lstrip("0")) > MAX_PRECISION or len(text.partition(".")[2]) > MAX_PRECISION:
            detail = f"The number has more than {MAX_PRECISION} digits. Write it with an exponent, such as 1.5e40."
            raise self._source.error("sql_syntax", detail, at=at)
        return Number(text, at=at)

    def _negation(self, node: exp.Neg) -> Expression:
        inner = node.this
        return Negation(self._literal(inner, negative=True) if isinstance(inner, exp.Literal) else self.read(inner))

    def _test(self, node: exp.Is) -> Expression:
        what = {exp.Null: "NULL", exp.Boolean: str(node.expression.this).upper()}.get(type(node.expression))
        if what is None:
            hint = "Write IS NULL, IS TRUE or IS FALSE, or compare with = or <=>."
            raise self._unsupported(node, "IS with an operand other than NULL, TRUE and FALSE", hint)
        return Test(self._operand(node.this), what)

    def _likes(self, node: exp.Expr) -> Expression:
        """Returns the comparisons of LIKE ANY with each pattern, joined by OR; those of LIKE ALL, joined by AND."""
        inner = node.expression.this
        patterns = inner.expressions if isinstance(inner, exp.Tuple) else [inner.this]
        if not isinstance(inner, exp.Tuple | exp.Paren) or any(isinstance(each, exp.Query) for each in patterns):
            hint = "Write the patterns in parentheses; for those of a query, EXISTS (SELECT 1 FROM p WHERE s LIKE p.x)."
            raise self._unsupported(node.expression, f"LIKE {node.expression.key.upper()} without patterns", hint)
        operand, operator = self._operand(node.this), LIKES[type(node)]
        size = NodeCounter().count(operand) * len(patterns)
        if size > EXPANDED_NODES.most:
            raise self._source.beyond(EXPANDED_NODES, size, at=position(node))
        terms: list[Expression] = [Like(operator, operand, self._operand(each), None) for each in patterns]
        if node.args.get("negate"):
            terms = [Not(term) for term in terms]
        word = "AND" if isinstance(node.expression, exp.All) else "OR"
        return terms[0] if len(terms) == 1 else Connective(word, tuple(terms))

    def _escape(self, node: exp.Escape) -> Expression:
        if isinstance(node.this.expression, exp.Any | exp.All):
            hint = "Write a comparison for each pattern, s LIKE 'a!%%' ESCAPE '!' OR …."
            raise self._unsupported(node, "ESCAPE after LIKE ANY or LIKE ALL", hint)
        inner = self.read(node.this)
        like = inner.operand if isinstance(inner, Not) else inner
        escape = node.expression
        if not isinstance(like, Like) or not escape.is_string or len(escape.name) != 1:
            hint = "Write a string literal of one character, such as ESCAPE '!'."
            raise self._unsupported(node, "ESCAPE with an operand that is not a single character", hint)
        escaped = Like(like.operator, like.operand, like.pattern, escape.name)
        return Not(escaped) if isinstance(inner, Not) else escaped

    def _case(self, node: exp.Case) -> Case:
        operand, default = node.this, node.args.get("default")
        return Case(
            self.read(operand) if operand else None,
            tuple((self.read(branch.this), self.read(branch.args["true"])) for branch in node.args["ifs"]),
            self.read(default) if default else None,
            is_unpivot=UNPIVOT in node.meta,
        )

    def _cast(self, node: exp.Cast) -> Cast:
        tries = isinstance(node, exp.TryCast) and bool(node.args.get("safe"))
        read = Cast(self.read(node.this), self._type(node.to, position(node)), tries)
        if read.type == DATE and not tries and isinstance(read.operand, String) and not self._source.is_accepted:
            self._check_date(read.operand, node)
        return read

    def _check_date(self, literal: String, node: exp.Cast) -> None:
        """Raises SpecError for a literal of a day that no calendar has."""
        found = _DAY.fullmatch(literal.value.strip())
        try:
            if found is not None and literal.parameter is None:
                date(*map(int, found.groups()))
        except ValueError:
            detail = f"'{literal.value[:40]}' is no date. Write the year, month and day, such as DATE '2026-01-31'."
            raise self._source.error("sql_syntax", detail, at=position(node)) from None

    def _type(self, node: exp.DataType, at: int | None) -> DataType:
        nested = self._nested.type(node, lambda part: self._type(part, at), at)
        if nested is not None:
            return nested
        construct = f"The type {node.sql()[:60]}"
        name = TYPES.get(node.this) if isinstance(node.this, exp.DType) else None
        parameters = [str(part.this.name) for part in node.expressions if isinstance(part, exp.DataTypeParam)]
        if name is None or node.args.get("nested") or (node.expressions and name is not TypeName.DECIMAL):
            hint = "Use a type such as BIGINT, DECIMAL(10,2), STRING, DATE, TIMESTAMP or ARRAY<INT>."
            raise self._source.unsupported(construct, at=at, hint=hint)
        if name is not TypeName.DECIMAL:
            return DataType(name)
        if len(parameters) > 2 or not all(part.isascii() and part.isdigit() and len(part) <= 3 for part in parameters):
            raise self._source.unsupported(construct, at=at, hint="Write DECIMAL(precision, scale).")
        precision, scale = [*map(int, parameters), *(10, 0)[len(parameters) :]]
        if not 1 <= precision <= MAX_PRECISION or scale > precision:
            hint = f"The precision is from 1 to {MAX_PRECISION}, the scale at most the precision."
            raise self._source.unsupported(f"DECIMAL({precision},{scale})", at=at, hint=hint)
        return decimal(precision, scale)

    def _interval(self, node: exp.Interval) -> Expression:
        value, unit = node.this, node.args.get("unit")
        name = str(unit.this).upper().removesuffix("S") if isinstance(unit, exp.Var) else ""
        number = value.name if isinstance(value, exp.Literal) else None
        if isinstance(value, exp.Placeholder):
            if self._names_parameters:
                return Name(None, f"INTERVAL {placeholder(value)} {name}")
            number = _text_of_literal(self.read(value))
        units = units_of(node)
        if units is not None and number is not None and is_interval(number, *units):
            return Interval(number, " TO ".join(units))
        if number is None or not INTERVAL_VALUE.fullmatch(number) or name not in INTERVAL_UNITS:
            raise self._unsupported(node, "This interval", INTERVAL_HINT)
        return Interval(number, name)

    def _filtered(self, node: exp.Filter) -> Expression | None:
        call = self.read(node.this)
        if not isinstance(call, Aggregate) or not isinstance(node.expression, exp.Where):
            return None
        condition = self._inside_aggregate().read(node.expression.this)
        both = condition if call.filter is None else Connective("AND", (call.filter, condition))
        return replace(call, filter=both)

    def _without_nulls(self, node: exp.IgnoreNulls | exp.RespectNulls) -> Expression | None:
        """Returns an aggregate with IGNORE NULLS or RESPECT NULLS; None for another call."""
        call = self.read(node.this)
        if not isinstance(call, Aggregate) or call.function not in _CHOOSES_A_VALUE or len(call.arguments) != 1:
            return None
        return call if isinstance(node, exp.RespectNulls) else _ignoring_nulls(call)

    def _with_switch(self, call: Aggregate) -> Aggregate:
        """Returns `any_value(x, TRUE)` as `any_value(x) IGNORE NULLS`, and so on; other calls as they are."""
        if call.function not in _CHOOSES_A_VALUE - _TAKES_A_SWITCH or len(call.arguments) != 2 or call.order_by:
            return call
        value, switch = call.arguments
        if not isinstance(switch, Boolean):
            what = f"A second argument of {call.function} that is not TRUE or FALSE"
            raise self._source.unsupported(what, at=call.at, hint=f"Write for example {call.function}(x, TRUE).")
        plain = replace(call, arguments=(value,))
        return _ignoring_nulls(plain) if switch.value else plain

    def _inside_aggregate(self) -> ExpressionReader:
        return ExpressionReader(self._source, aggregates=False, names_parameters=self._names_parameters)

    def _call(self, node: exp.Anonymous) -> Expression:
        at = position(node)
        if not isinstance(node.this, str):
            raise self._unsupported(node, f"The quoted function name {node.name}", "Remove the quotes.")
        name = node.this.lower()
        if name == "struct":
            return self._nested.structure(node.expressions, at)
        aggregate = function_named(name)
        if aggregate is not None:
            return self._aggregate(aggregate, node, at)
        if name in SESSION_FUNCTIONS:
            raise misplaced_session(name, at, self._source)
        if name in WINDOWS or name in PARTS:
            return self._window(name, node, at)
        if name in WITH_UNITS and len(node.expressions) == 3:
            return with_unit(name, node.expressions, at, self._source, self.read)
        function = FORMS.get(name) or FUNCTIONS.get(name)
        if function is None:
            detail, suggestions = unknown_function(name, _CALLABLE)
            raise self._source.error("unsupported_function", detail, at=at, suggestions=suggestions)
        parts = enumerate(node.expressions)
        arguments = tuple(self._nested.argument(name, index, part, at) for index, part in parts)
        if not function.accepts(len(arguments)):
            raise self._source.error("unsupported_function", wrong_arity(name, function.arity, len(arguments)), at=at)
        if name in FORMS:
            return read_form(name, arguments, at, self._source)
        return zipped(Call(name, arguments, at)) if name == "arrays_zip" else Call(name, arguments, at)

    def _window(self, name: str, node: exp.Anonymous, at: int | None) -> Call:
        if name not in self._windows:
            raise misplaced(name, at, self._source)
        return Call(name, tuple(self.read(argument) for argument in node.expressions), at)

    def _aggregate(self, function: AggregateFunction, node: exp.Anonymous, at: int | None) -> Aggregate:
        if not self._aggregates or self._nested.in_lambda:
            where = "in SELECT, HAVING and ORDER BY"
            if self._source.pointer != "/sql":
                where = "in the query's `aggregates`, whose names `select`, `having` and `order_by` use"
            hint = f"Use aggregates {where}, and not inside another aggregate."
            raise self._source.unsupported(f"The aggregate {function}", at=at, hint=hint)
        return self._with_switch(self._aggregate_reader().call(function, node, at))

    def _within_group(self, node: exp.WithinGroup) -> Aggregate | None:
        call = self.read(node.this)
        return self._aggregate_reader().within_group(call, node) if isinstance(call, Aggregate) else None

    def _aggregate_reader(self) -> AggregateReader:
        inner = self._inside_aggregate()
        return AggregateReader(self._source, inner.read, self.check_clauses, self._unsupported)


def _ignoring_nulls(call: Aggregate) -> Aggregate:
    if call.function is AggregateFunction.ANY_VALUE:
        # It is the smallest value, which is no NULL.
        return call
    if call.function in _TAKES_A_SWITCH:
        return replace(call, arguments=(*call.arguments, Boolean(True)))
    return replace(call, filter=Not(Test(call.arguments[0], "NULL")))


def _placed(literal: Expression, at: int) -> Expression:
    """Returns a literal at the offset of its placeholder."""
    if isinstance(literal, Null | Boolean | Number | String):
        return replace(literal, at=at)
    return map_children(literal, lambda part: _placed(part, at))


def _text_of_literal(node: Expression) -> str | None:
    match node:
        case String(text) | Number(text):
            return text
        case Negation(Number(text)):
            return f"-{text}"
        case _:
            return None


def _operands(node: exp.And | exp.Or) -> list[exp.Expr]:
    # Iterative, because a chain may have thousands of terms.
    terms: list[exp.Expr] = []
    pending: list[exp.Expr] = [node]
    while pending:
        part = pending.pop()
        if type(part) is type(node):
            pending.extend((part.expression, part.this))
        else:
            terms.append(part)
    return terms


class _TemplateReader(ExpressionReader):
    """Reads expressions that rules write; `numbers` maps placeholder names in the text to numbers with a suffix."""

    def __init__(self, source: Text, numbers: Mapping[str, Number]) -> None:
        super().__init__(source, aggregates=False)
        self._numbers = numbers

    def read(self, node: exp.Expr | None) -> Expression:
        match node:
            case exp.Anonymous():
                return Call(node.name.lower(), tuple(self.read(argument) for argument in node.expressions))
            case exp.Column() if node.table:
                return GetField(Name(None, node.table), node.name)
            case exp.Column() if node.name in self._numbers:
                return self._numbers[node.name]
        match tree := super().read(node):
            case Not(Test(operand, "NULL")):
                return Test(operand, "NOT NULL")
        return tree


__all__ = ["ExpressionReader", "placeholder", "position", "read_expression", "read_template"]

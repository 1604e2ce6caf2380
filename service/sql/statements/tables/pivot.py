"""Replaces PIVOT and UNPIVOT by queries.

PIVOT groups by the columns that it does not name, with an aggregate for each value. UNPIVOT joins its input with a row
for each column, so that the input is read once.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from service.contract.problems import did_you_mean, nearest_names
from service.sql.expressions.reader import position
from service.sql.parser import UNPIVOT, Text
from service.sql.statements import trees


def rewritten(
    pivot: exp.Pivot, table: exp.Expr, alias: str, columns: Sequence[str], unused: str, source: Text
) -> exp.Select:
    """Returns a query for `pivot` of `table`, a node of FROM that is called `alias` and has `columns`. `unused` is an
    alias that no other table has.

    Raises SpecError `unsupported_construct`.
    """
    if len(pivot.args["fields"]) != 1:
        raise source.unsupported("PIVOT with several FOR", at=position(pivot), hint="Write FOR (a, b) IN ((1, 2)).")
    if pivot.args.get("unpivot"):
        return _Unpivot(pivot, alias, columns, unused, source).query(table)
    return _Pivot(pivot, alias, columns, source).query(table)


class _Pivot:
    def __init__(self, pivot: exp.Pivot, alias: str, columns: Sequence[str], source: Text) -> None:
        self._pivot = pivot
        self._alias = alias
        self._columns = columns
        self._source = source
        self._field = pivot.args["fields"][0]

    def query(self, table: exp.Expr) -> exp.Select:
        keys = _parts(self._field.this)
        parts = (*self._pivot.expressions, *keys)
        used = {self._read(column) for part in parts for column in part.find_all(exp.Column)}
        groups = [trees.column(self._alias, name) for name in self._columns if name.casefold() not in used]
        items: list[exp.Expr] = [*groups]
        for value in self._field.expressions:
            if isinstance(value, exp.Query | exp.PivotAny):
                what = "ANY" if isinstance(value, exp.PivotAny) else "A subquery"
                # The word IN has no place of its own.
                at = position(value) or position(self._field)
                hint = "Write each value: IN (1, 2), and text in quotes: IN ('a', 'b')."
                raise self._source.unsupported(f"{what} in IN of PIVOT", at=at, hint=hint)
            wanted = _parts(value.this if isinstance(value, exp.PivotAlias) else value)
            if len(wanted) != len(keys):
                detail = f"This value of PIVOT has {len(wanted)} parts; there are {len(keys)} columns before IN."
                raise self._source.error("unsupported_construct", detail, at=position(value))
            pairs = zip(keys, wanted, strict=True)
            matches = trees.chained([exp.NullSafeEQ(this=key.copy(), expression=part) for key, part in pairs], exp.And)
            items += [self._item(aggregate, matches, value) for aggregate in self._pivot.expressions]
        group = exp.Group(expressions=[column.copy() for column in groups]) if groups else None
        return exp.Select(expressions=items, from_=exp.From(this=table), group=group)

    def _read(self, column: exp.Column) -> str:
        """Returns the case-folded name of the column that `column` reads: for a field, that of its structure."""
        first, *rest = (part.name.casefold() for part in column.parts)
        is_qualified = rest and first == self._alias.casefold() and rest[0] in map(str.casefold, self._columns)
        return rest[0] if is_qualified else first

    def _item(self, aggregate: exp.Expr, matches: exp.Expr, value: exp.Expr) -> exp.Expr:
        at = position(aggregate)
        if next(trees.calls_in(aggregate), None) is None:
            raise self._source.unsupported("PIVOT without an aggregate", at=at, hint="Write MAX(x) FOR …")
        star = next(trees.stars_in_arguments(aggregate), None)
        if star is not None:
            raise self._source.unsupported("* as an argument in PIVOT", at=position(star), hint="Name the columns.")
        name = _name(value, self._source)
        if len(self._pivot.expressions) > 1:
            if not isinstance(aggregate, exp.Alias):
                hint = "Name each: SUM(x) AS total, COUNT(*) AS n."
                raise self._source.unsupported("PIVOT with several aggregates without aliases", at=at, hint=hint)
            name = f"{name}_{aggregate.alias}"
        bare = aggregate.unalias().copy()
        filtered = trees.mapped_calls(bare, lambda call: _filtered(call, matches))
        if trees.function_of(bare) not in trees.AGGREGATES - trees.COUNTS:
            # As in Spark, the value is NULL if no row matches.
            rows = _filtered(trees.call("COUNT", exp.Star()), matches)
            filtered = exp.Case(ifs=[exp.If(this=exp.GT(this=rows, expression=trees.number(0)), true=filtered)])
        return trees.placed(exp.Alias(this=filtered, alias=trees.identifier(name)), at)


class _Unpivot:
    def __init__(self, pivot: exp.Pivot, alias: str, columns: Sequence[str], unused: str, source: Text) -> None:
        self._pivot = pivot
        self._alias = alias
        self._columns = columns
        self._unused = unused
        self._source = source
        self._field = pivot.args["fields"][0]

    def query(self, table: exp.Expr) -> exp.Select:
        values = [part.name for part in _parts(self._pivot.expressions[0])]
        sets = [_parts(item.this if isinstance(item, exp.PivotAlias) else item) for item in self._field.expressions]
        for columns, item in zip(sets, self._field.expressions, strict=True):
            if len(columns) != len(values):
                detail = f"{len(values)} columns are needed for each value of UNPIVOT, not {len(columns)}."
                raise self._source.error("unsupported_construct", detail, at=position(item))
        folded = [name.casefold() for name in self._columns]
        for column in (column for columns in sets for column in columns):
            if column.name.casefold() not in folded:
                suggestions = nearest_names(column.name, self._columns)
                listed = f" The columns are {', '.join(self._columns[:12])}."
                what = f"There is no column {column.name}." if column.name else "UNPIVOT needs the names of columns."
                detail = f"{what}{did_you_mean(suggestions) or listed}"
                raise self._source.error("unknown_column", detail, at=position(column), suggestions=suggestions)
        used = {column.name.casefold() for columns in sets for column in columns}
        items: list[exp.Expr] = [
            trees.column(self._alias, name) for name in self._columns if name.casefold() not in used
        ]
        labels = [_label(item, columns) for item, columns in zip(self._field.expressions, sets, strict=True)]
        items.append(self._chosen([exp.Literal.string(label) for label in labels], self._field.this.name))
        items += [self._chosen([columns[at] for columns in sets], name) for at, name in enumerate(values)]
        rows = exp.Values(
            expressions=[exp.Tuple(expressions=[trees.number(number)]) for number in range(1, len(sets) + 1)],
            alias=exp.TableAlias(this=trees.identifier(self._unused), columns=[trees.identifier("number")]),
        )
        query = exp.Select(expressions=items, from_=exp.From(this=table), joins=[exp.Join(this=rows, kind="CROSS")])
        if self._pivot.args.get("include_nulls"):
            return query
        known = [exp.Not(this=trees.is_null(exp.Column(this=trees.identifier(name)))) for name in values]
        return exp.Select(
            expressions=[exp.Star()],
            from_=exp.From(this=exp.Subquery(this=query, alias=exp.TableAlias(this=trees.identifier(self._unused)))),
            where=exp.Where(this=trees.chained(known, exp.Or)),
        )

    def _chosen(self, values: Sequence[exp.Expr], name: str) -> exp.Expr:
        """Returns the value with the number of the joined row."""
        number = trees.column(self._unused, "number")
        ifs = [exp.If(this=trees.number(at), true=value.copy()) for at, value in enumerate(values, start=1)]
        chosen = exp.Case(this=number, ifs=ifs)
        chosen.meta[UNPIVOT] = True
        return exp.Alias(this=chosen, alias=trees.identifier(name))


def _parts(node: exp.Expr) -> list[exp.Expr]:
    return list(node.expressions) if isinstance(node, exp.Tuple) else [node]


def _filtered(call: exp.Expr, matches: exp.Expr) -> exp.Expr:
    if isinstance(call, exp.Filter):
        both = exp.And(this=exp.Paren(this=call.expression.this.copy()), expression=matches.copy())
        return exp.Filter(this=call.this.copy(), expression=exp.Where(this=both))
    return exp.Filter(this=call.copy(), expression=exp.Where(this=matches.copy()))


def _name(value: exp.Expr, source: Text) -> str:
    if isinstance(value, exp.PivotAlias):
        return str(value.args["alias"].name)
    if isinstance(value, exp.Null | exp.Boolean):
        return str(value.sql()).lower()
    sign, bare = ("-", value.this) if isinstance(value, exp.Neg) else ("", value)
    if not isinstance(bare, exp.Literal):
        hint = "Write a name after it: (1, 2) AS one_two."
        raise source.unsupported("An expression as a value of PIVOT, without AS,", at=position(value), hint=hint)
    return f"{sign}{bare.name}"


def _label(item: exp.Expr, columns: Sequence[exp.Expr]) -> str:
    if isinstance(item, exp.PivotAlias):
        return str(item.args["alias"].name)
    return "_".join(column.name for column in columns)

"""What the parser says of a text that it cannot read, in words that tell the reader where to look and what to write.

Spark SQL text to sqlglot trees, within limits. What of a tree is accepted is decided by its readers.

Functions are left as they are written (`exp.Anonymous`): sqlglot's own readings of them lose what Spark would be told.
String literals are read by Spark's rules here, because sqlglot's differ in detail.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.parser import Parser as BaseParser
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token, TokenType

from service.contract.problems import SpecError
from service.contract.query import CODE, NESTING, OPERATOR_DEPTH, SQL_CHARACTERS, SQL_TOKENS, Limit
from service.sql.constructs import ARITHMETIC, COMPARISONS
from service.sql.expressions.nodes import Expression
from service.sql.types.data_types import TypeName

_MISSING = re.compile(r"Required (?:keyword|argument): '(\w+)' missing for <class '.*\.(\w+)'>")
_OPERATORS = {kind.__name__: sign for kind, sign in {**ARITHMETIC, **COMPARISONS, exp.Neg: "-"}.items()}
_PARTS = {
    "Order": "ORDER BY",
    "If": "WHEN",
    "TryCast": "CAST",
    "CTE": "WITH",
    "GroupingSets": "GROUPING SETS",
}
_TABLE = re.compile(r"Expected table name but got .*", re.DOTALL)
_TYPES = ", ".join(name.value for name in TypeName if name not in {TypeName.NULL, TypeName.OTHER})
_BY_COMMAS = {
    "SUBSTRING": "substring(x, 1, 2)",
    "SUBSTR": "substring(x, 1, 2)",
    "TRIM": "trim(' ' FROM x) as btrim(x, ' '), or ltrim and rtrim",
    "OVERLAY": "concat(left(x, 2), 'new', substring(x, 5))",
    "CEIL": "ceil(x, 1)",
    "FLOOR": "floor(x, 1)",
    "LISTAGG": "LISTAGG(x, ',') WITHIN GROUP (ORDER BY t)",
}
"""Functions whose arguments other dialects part by words, and how they are written here."""
_FOREIGN = {
    "TOP": "Write LIMIT at the end.",
    "XOR": "Write a <> b of two conditions.",
    "&&": "Write AND.",
    "**": "Write power(x, n).",
    "~": "Write x RLIKE 'pattern'.",
    "WINDOW": "To group by time write GROUP BY TUMBLE(t, INTERVAL '10' MINUTE) over a stream, else GROUP BY "
    "date_trunc('hour', t).",
    "TABLE": "A table is its name alone. To group a stream by time write GROUP BY TUMBLE(t, INTERVAL '10' MINUTE).",
    "#": "A comment begins with --.",
    "AGAINST": "Write x LIKE '%word%'.",
    "PREWHERE": "Write WHERE.",
}
"""Words and signs of other dialects in front of what cannot be read, or there."""
_ENDS = frozenset(
    {
        TokenType.R_PAREN,
        TokenType.R_BRACKET,
        TokenType.COMMA,
        TokenType.FROM,
        TokenType.WHERE,
        TokenType.GROUP_BY,
        TokenType.HAVING,
        TokenType.ORDER_BY,
        TokenType.UNION,
    }
)
_DEMANDING = frozenset({TokenType.COMMA, TokenType.ON, TokenType.ALIAS})
"""Behind these something has to stand; the parser takes their absence for nothing, or for TRUE."""


_ORDER = {
    TokenType.JOIN: 1,
    TokenType.WHERE: 2,
    TokenType.GROUP_BY: 3,
    TokenType.HAVING: 4,
    TokenType.ORDER_BY: 5,
    TokenType.LIMIT: 6,
}
_BEGINNINGS = frozenset({TokenType.SELECT, TokenType.UNION, TokenType.EXCEPT, TokenType.INTERSECT})


def dangling(tokens: Sequence[Token]) -> Token | None:
    """The first comma, ON or AS with nothing behind it."""
    for index, token in enumerate(tokens):
        if token.token_type not in _DEMANDING:
            continue
        if index + 1 == len(tokens) or tokens[index + 1].token_type in _ENDS:
            return token
    return None


def misplaced(tokens: Sequence[Token]) -> tuple[Token, str] | None:
    """The first clause of a SELECT that stands behind one that comes after it, and what to say; the parser takes any
    order.
    """
    latest: list[Token | None] = [None]
    for index, token in enumerate(tokens):
        if token.token_type is TokenType.L_PAREN:
            latest.append(None)
        elif token.token_type is TokenType.R_PAREN and len(latest) > 1:
            latest.pop()
        elif token.token_type in _BEGINNINGS:
            latest[-1] = None
        elif token.token_type in _ORDER and not _is_name(tokens, index):
            before = latest[-1]
            if before is not None and _ORDER[before.token_type] > _ORDER[token.token_type]:
                order = ", ".join(type_.name.replace("_", " ") for type_ in _ORDER)
                return token, f"{token.text.upper()} stands behind {before.text.upper()}; the order is FROM, {order}."
            latest[-1] = token
    return None


def _is_name(tokens: Sequence[Token], index: int) -> bool:
    """Whether LIMIT is a name here: as a clause a number follows."""
    if tokens[index].token_type is not TokenType.LIMIT:
        return False
    return index + 1 == len(tokens) or tokens[index + 1].token_type is not TokenType.NUMBER


def what_is_wrong(error: ParseError, tokens: Sequence[Token]) -> tuple[str, int | None, int | None]:
    """What is wrong, with what to write where that is known, and line and column of it."""
    facts = error.errors[0] if error.errors else {}
    line, column = facts.get("line"), facts.get("col")
    highlight = str(facts.get("highlight") or "")
    what = _in_words(str(facts.get("description") or "").rstrip("."), highlight)
    if isinstance(column, int):
        # sqlglot counts to the end of the token.
        column = max(1, column - len(highlight) + 1)
    hint = _hint(tokens, line, column)
    return f"{what}.{f' {hint}' if hint else ''}", line, column


def _in_words(what: str, highlight: str) -> str:
    near = f" near '{highlight[:40]}'" if highlight else ""
    missing = _MISSING.fullmatch(what)
    if missing is not None:
        part = missing.group(2)
        return f"An operand of {_OPERATORS.get(part) or _PARTS.get(part) or part.upper()} is missing{near}"
    if _TABLE.fullmatch(what):
        return f"The name of a table is missing{near}"
    if what in {"Expected TYPE after CAST", "Expected type"}:
        return f"'{highlight[:40]}' is no type; there are {_TYPES}"
    if highlight and what in {"", "Invalid expression / Unexpected token"}:
        return f"'{highlight[:40]}' is not expected here"
    return f"{what or 'The text cannot be read'}{near}"


def _hint(tokens: Sequence[Token], line: object, column: object) -> str:
    at = next((index for index, token in enumerate(tokens) if (token.line, _column(token)) == (line, column)), None)
    if at is None:
        return ""
    if [token.text for token in tokens[max(at - 2, 0) : at]] == ["*", "*"]:
        return _FOREIGN["**"]
    for token in (tokens[at], *tokens[max(at - 1, 0) : at]):
        if token.text.upper() in _FOREIGN:
            return _FOREIGN[token.text.upper()]
    name = _called(tokens[:at])
    if name == "WINDOW":
        return _FOREIGN[name]
    return f"Write {_BY_COMMAS[name]}." if name in _BY_COMMAS else ""


def _column(token: Token) -> int:
    """The column of the first character of a token, which sqlglot counts to its last."""
    return token.col - (token.end - token.start)


def _called(tokens: Sequence[Token]) -> str:
    """The word in front of the innermost parenthesis that `tokens` leave open."""
    depth = 0
    for index in range(len(tokens) - 1, 0, -1):
        depth += (tokens[index].token_type is TokenType.R_PAREN) - (tokens[index].token_type is TokenType.L_PAREN)
        if depth < 0:
            return tokens[index - 1].text.upper()
    return ""


FIRST = "first"
"""In the `meta` of a node: the offset of the first part of it that knows its own."""

_OPENING = {TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE, TokenType.CASE}
_CLOSING = {TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE, TokenType.END}
_SET_OPERATORS = {TokenType.UNION, TokenType.EXCEPT, TokenType.INTERSECT}
_SUFFIXES = {TokenType.BIGINT, TokenType.SMALLINT, TokenType.TINYINT}
_CODE_POINT = r"[0-3][0-7]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}"
_UNREADABLE = re.compile(r"(?:Missing (?P<quote>.+)|(?P<other>.+)) from \d+:(?P<at>\d+)", re.DOTALL)
_CLOSED = re.compile(r"""--[^\n]*|/\*.*?\*/|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|`[^`]*`|(?!/\*)[^'"`]""", re.DOTALL)
_COMMENTS = re.compile(r"""--[^\n]*|/\*.*?\*/|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|`[^`]*`""", re.DOTALL)
_NO_SQL = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff]")
_ESCAPE = re.compile(rf"\\({_CODE_POINT}|.)", re.DOTALL)
_ESCAPED = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}


# It tells clients' texts on its own, before they are refused here.
logging.getLogger("sqlglot").setLevel(logging.ERROR)

_PrimaryParser = Callable[[BaseParser, Token], exp.Expr | None]


@dataclass(frozen=True)
class Text:
    """A text and the JSON pointer of the field that holds it; makes errors that name the place.

    An expression that was compiled from SQL has the `tree` that it was written from, which is not read again, and the
    `sql` that the places in `tree` belong to. `is_accepted`: the text belongs to a job that was accepted, maybe by a
    version with fewer limits.
    """

    text: str
    pointer: str
    tree: Expression | None = None
    sql: str | None = None
    is_accepted: bool = False

    @cached_property
    def tokens(self) -> tuple[Token, ...]:
        """The tokens of the text, as `tokens_of` returns them."""
        return _tokens(self)

    def error(self, code: str, detail: str, *, at: int | None = None, suggestions: Iterable[str] = ()) -> SpecError:
        """A `SpecError` at offset `at`, where that is known."""
        line = column = None
        if at is not None:
            text = self.text if self.sql is None else self.sql
            line = text.count("\n", 0, at) + 1
            column = at - text.rfind("\n", 0, at)
        return SpecError.of(
            code, detail, pointer=self.pointer, line=line, column=column, suggestions=tuple(suggestions)
        )

    def beyond(self, limit: Limit, found: int | None = None, *, at: int | None = None) -> SpecError:
        """The refusal of a text that has `found` of what `limit` counts, or more than it allows."""
        return self.error(CODE, limit.detail(found), at=at)

    def unsupported(self, construct: str, *, at: int | None = None, hint: str = "") -> SpecError:
        """`unsupported_construct`, naming it."""
        detail = f"{construct} cannot be used here."
        return self.error("unsupported_construct", detail + (f" {hint}" if hint else ""), at=at)


TextOf = Callable[[str, str], Text]
"""Makes the `Text` of an expression and its JSON pointer."""


def _with_place(parse: _PrimaryParser) -> _PrimaryParser:
    def placed(parser: BaseParser, token: Token) -> exp.Expr | None:
        node = parse(parser, token)
        if node is not None:
            node.meta.setdefault("start", token.start)
        return node

    return placed


class _Parser(SparkParser):
    # sqlglot gives a place to names alone.
    PRIMARY_PARSERS: ClassVar = {type_: _with_place(parse) for type_, parse in SparkParser.PRIMARY_PARSERS.items()}
    FUNCTIONS: ClassVar = {}
    FUNCTION_PARSERS: ClassVar = {
        name: parser for name, parser in SparkParser.FUNCTION_PARSERS.items() if name in {"CAST", "TRY_CAST", "EXTRACT"}
    }
    NO_PAREN_FUNCTIONS: ClassVar = {}
    # Session windows are refused by what they are, not for a parenthesis.
    FUNC_TOKENS: ClassVar = {*SparkParser.FUNC_TOKENS, TokenType.SESSION}
    NO_PAREN_FUNCTION_PARSERS: ClassVar = {"CASE": SparkParser.NO_PAREN_FUNCTION_PARSERS["CASE"]}
    # In Spark `||` binds as tightly as `+`.
    TERM: ClassVar = {**SparkParser.TERM, TokenType.DPIPE: exp.DPipe}

    def _parse_hint(self) -> exp.Hint | None:
        """The comment as it is, and where it stands: `service.sql.statements.join_hints` reads it."""
        if not self._match(TokenType.HINT):
            return None
        hint = exp.Hint(expressions=[exp.Var(this=self._prev.text)])
        hint.meta["start"] = self._prev.start
        return hint

    EXPRESSION_PARSERS: ClassVar = {
        **SparkParser.EXPRESSION_PARSERS,
        # sqlglot's own reads none that begins with a parenthesis.
        exp.Select: lambda parser: parser._parse_query_modifiers(
            parser._parse_set_operations(parser._parse_select(nested=True, parse_subquery_alias=False))
        ),
    }


class _Dialect(Spark):
    Parser = _Parser


def parse_expression(source: Text) -> exp.Expr:
    """The tree of a single expression.

    Raises SpecError `sql_syntax`, `query_too_deep`, `unsupported_construct`.
    """
    return _parse(source, exp.Condition)


def parse_query(source: Text) -> exp.Expr:
    """The tree of a single SELECT or of what stands in the place of one.

    Raises SpecError `sql_syntax`, `query_too_deep`, `unsupported_construct`.
    """
    return _parse(source, exp.Select)


def tokens_of(source: Text) -> list[Token]:
    """The tokens of a text within the limits; string literals have their value as `text`.

    Raises SpecError `sql_syntax`, `query_too_deep`, `unsupported_construct`.
    """
    return list(source.tokens)


def _tokens(source: Text) -> tuple[Token, ...]:
    _check_characters(source)
    try:
        tokens = _Dialect().tokenize(source.text)
    except SqlglotError as error:
        raise _token_error(source, error) from None
    if len(tokens) > SQL_TOKENS.most:
        raise source.beyond(SQL_TOKENS, len(tokens), at=tokens[SQL_TOKENS.most].start)
    depth, deepest, place = 0, 0, 0
    for token in tokens:
        depth += (token.token_type in _OPENING) - (token.token_type in _CLOSING)
        if depth == NESTING.most + 1 and deepest <= NESTING.most:
            place = token.start
        deepest = max(deepest, depth)
    if deepest > NESTING.most:
        raise source.beyond(NESTING, deepest, at=place)
    return tuple(_with_spark_strings(source, tokens))


def place_of(source: Text, keyword: TokenType, within: int | None = None) -> int | None:
    """Offset of the last `keyword` of the SELECT that the offset `within` stands in, those nested in it left out.

    Without `within`, or where none begins before it, that of the outermost. Raises SpecError as `tokens_of` does.
    """
    tokens = tokens_of(source)
    starts = [index for index, token in enumerate(tokens) if token.token_type is TokenType.SELECT]
    first = next((index for index in reversed(starts) if within is not None and tokens[index].start <= within), 0)
    depth = 0
    found: int | None = None
    for index, token in enumerate(tokens[first:]):
        depth += (token.token_type in _OPENING) - (token.token_type in _CLOSING)
        if depth < 0 or (first and index and depth == 0 and token.token_type in _SET_OPERATORS):
            break
        if token.token_type is keyword and depth == 0:
            found = token.start
    return found


def _check_hints(source: Text, tokens: Iterable[Token]) -> None:
    """Refuses hints that no SELECT would see: to the parser they are comments."""
    seen = {token.start for token in tokens if token.token_type is TokenType.HINT}
    for comment in _COMMENTS.finditer(source.text):
        if comment.group().startswith("/*+") and comment.start() not in seen:
            hint = "Write all hints of a SELECT in one comment right behind SELECT."
            raise source.unsupported("A hint", at=comment.start(), hint=hint)


def _check_characters(source: Text) -> None:
    if len(source.text) > SQL_CHARACTERS.most:
        raise source.beyond(SQL_CHARACTERS, len(source.text), at=SQL_CHARACTERS.most)
    wrong = _NO_SQL.search(source.text)
    if wrong is not None:
        character = ord(wrong.group())
        raise source.error("sql_syntax", f"The character U+{character:04X} has no place in SQL.", at=wrong.start())


def _parse(source: Text, into: type[exp.Expr]) -> exp.Expr:
    tokens = tokens_of(source)
    while tokens and tokens[-1].token_type is TokenType.SEMICOLON:
        tokens.pop()
    for token in tokens:
        if token.token_type is TokenType.SEMICOLON:
            raise source.unsupported("A second statement", at=token.start, hint="Post one job for each.")
        if token.token_type is TokenType.PIPE_GT:
            raise source.unsupported("The pipe operator |>", at=token.start, hint="Write SELECT … FROM …")
    if not tokens:
        raise source.error("sql_syntax", "The text is empty.")
    lost = dangling(tokens)
    if lost is not None:
        raise source.error("sql_syntax", f"Something is missing behind '{lost.text}'.", at=lost.start)
    behind = misplaced(tokens)
    if behind is not None:
        raise source.error("sql_syntax", behind[1], at=behind[0].start)
    if into is exp.Select:
        _check_hints(source, tokens)
    try:
        trees = _Dialect().parser().parse_into(into, tokens, source.text)
    except ParseError as error:
        raise _syntax_error(source, error, tokens) from None
    except RecursionError:
        # NOT and minus signs, for example, which are no brackets.
        raise source.beyond(NESTING) from None
    except (SqlglotError, ValueError) as error:
        raise source.error("sql_syntax", f"The text cannot be read: {_first_line(str(error))}.") from None
    tree = trees[0] if len(trees) == 1 else None
    if tree is None:
        raise source.error("sql_syntax", "The text is not an expression." if into is exp.Condition else "No SELECT.")
    _check_depth(source, tree)
    _note_places(tree)
    return tree


def _token_error(source: Text, error: SqlglotError) -> SpecError:
    told = _UNREADABLE.fullmatch(str(error.__cause__))
    if told is None:
        # The text ends where sqlglot did not expect it to.
        return _unclosed(source)
    detail = f"A {told['quote']} is not closed." if told["quote"] else f"{told['other']}."
    return source.error("sql_syntax", detail, at=int(told["at"]))


def _unclosed(source: Text) -> SpecError:
    at = 0
    while part := _CLOSED.match(source.text, at):
        at = part.end()
    if at < len(source.text):
        opening = source.text[at] if source.text[at] != "/" else "comment"
        return source.error("sql_syntax", f"A {opening} is not closed.", at=at)
    # Each has an end, then: one that holds another needs two.
    return source.error("sql_syntax", "A comment is not closed.", at=max(source.text.rfind("/*"), 0))


def _syntax_error(source: Text, error: ParseError, tokens: Sequence[Token]) -> SpecError:
    detail, line, column = what_is_wrong(error, tokens)
    return SpecError.of("sql_syntax", detail, pointer=source.pointer, line=line, column=column)


def _check_depth(source: Text, tree: exp.Expr) -> None:
    # Iteratively: a chain of operators makes a deep tree without any nesting in the text.
    pending: list[tuple[exp.Expr, int]] = [(tree, 1)]
    deepest, place = 0, None
    while pending:
        node, depth = pending.pop()
        if depth > deepest:
            deepest, place = depth, node
        for child in node.iter_expressions():
            chained = type(child) is type(node) and isinstance(node, exp.And | exp.Or | exp.SetOperation)
            pending.append((child, depth if chained else depth + 1))
    if deepest > OPERATOR_DEPTH.most:
        starts = [node.meta["start"] for node in place.walk() if "start" in node.meta] if place is not None else []
        raise source.beyond(OPERATOR_DEPTH, deepest, at=min(starts, default=None))


def _note_places(tree: exp.Expr) -> None:
    """Notes `FIRST` in every node: to look for it below each node again would take depth times as long."""
    nodes = list(tree.walk(bfs=False))
    for node in reversed(nodes):
        first = node.meta.get(FIRST)
        start = node.meta.get("start")
        if start is not None and (first is None or start < first):
            node.meta[FIRST] = first = start
        if first is not None and node.parent is not None:
            above = node.parent.meta
            above[FIRST] = min(above.get(FIRST, first), first)


def _with_spark_strings(source: Text, tokens: list[Token]) -> list[Token]:
    result: list[Token] = []
    for token in tokens:
        if _is_suffix(token, result):
            # `5L` arrives as `5::BIGINT` does, but tells Spark its digits: it stays one token here.
            number, cast = result[-2:]
            result[-2:] = [
                Token(TokenType.NUMBER, number.text + token.text, cast.line, cast.col, token.start, token.end)
            ]
        elif token.token_type is not TokenType.STRING:
            result.append(token)
        else:
            _append_string(source, token, result)
    for token in result:
        if token.token_type is TokenType.STRING and any("\ud800" <= character <= "\udfff" for character in token.text):
            raise source.error("sql_syntax", "A string holds half of a surrogate pair.", at=token.start)
    return result


def _append_string(source: Text, token: Token, result: list[Token]) -> None:
    raw = source.text[token.start : token.end + 1]
    last = result[-1] if result else None
    value = unescape(raw[1:-1])
    touches = last is not None and last.token_type is TokenType.STRING and last.end + 1 == token.start
    if last is not None and touches and source.text[last.end] == raw[0]:
        # A doubled quote stands for one quote.
        result[-1] = _string(last, last.text + raw[0] + value, token.end)
    else:
        result.append(_string(token, value, token.end))


def _is_suffix(token: Token, before: list[Token]) -> bool:
    """Whether `token` is the L, S or Y of a number: sqlglot gives number, `::` and type one start then."""
    return (
        token.token_type in _SUFFIXES
        and len(before) > 1
        and before[-1].token_type is TokenType.DCOLON
        and before[-2].token_type is TokenType.NUMBER
        and before[-1].start == before[-2].start == token.start
    )


def _string(token: Token, value: str, end: int) -> Token:
    return Token(TokenType.STRING, value, token.line, token.col, token.start, end)


def unescape(raw: str) -> str:
    """The value of what stands between the quotes of a string literal, as Spark reads it."""
    if "\\" not in raw:
        return raw

    def character(match: re.Match[str]) -> str:
        escape = match.group(1)
        if len(escape) == 1:
            return _ESCAPED.get(escape, escape)
        code = int(escape, 8) if escape[0] in "0123" else int(escape[1:], 16)
        return chr(code) if code <= 0x10FFFF else "\ufffd"

    value = _ESCAPE.sub(character, raw)
    # Two escapes may name the halves of one character.
    return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _first_line(message: str) -> str:
    return message.strip().splitlines()[0].rstrip(".")[:200] if message.strip() else "unknown reason"

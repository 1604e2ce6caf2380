"""Parses Spark SQL text into sqlglot trees, within limits.

Whether a construct is supported is decided later, by the modules that read the tree.

Function calls stay as they are written (`exp.Anonymous`), because sqlglot's own function nodes lose details that Spark
needs. String literals are read by Spark's rules, which differ from sqlglot's in detail.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.parser import Parser as BaseParser
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token, TokenType

from service.contract.parameters import PARAMETER_NAME
from service.contract.problems import SpecError
from service.contract.query import CODE, NESTING, OPERATOR_DEPTH, SQL_CHARACTERS, SQL_TOKENS, Limit
from service.sql.bit_operators import BIT_OPERATORS, BitOperator
from service.sql.expressions.nodes import Expression
from service.sql.function_words import FUNCTIONS_WITH_WORDS
from service.sql.parse_errors import describe_parse_error
from service.sql.token_order import dangling, misplaced
from service.sql.tokens import check_names, longest_chain

LEVELS = "levels"
"""In the `meta` of the alias of a common table expression: the text after MAX RECURSION LEVEL."""
UNPIVOT = "unpivot"
"""In the `meta` of a CASE that chooses between the columns of UNPIVOT."""
TREE = "tree"
"""The key of a node's metadata under which its expression tree is stored, if it has one already."""
CONTINUES = "continues"
"""The key of the metadata of the columns of a star after the first one."""
FIRST = "first"
"""In the `meta` of a node: the smallest offset of its parts that have one."""

_OPENING = {TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE, TokenType.CASE}
_CLOSING = {TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE, TokenType.END}
_SET_OPERATORS = {TokenType.UNION, TokenType.EXCEPT, TokenType.INTERSECT}
_SUFFIXES = {TokenType.BIGINT, TokenType.SMALLINT, TokenType.TINYINT}
_CODE_POINT = r"[0-3][0-7]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}"
_UNREADABLE = re.compile(r"(?:Missing (?P<quote>.+)|(?P<other>.+)) from \d+:(?P<at>\d+)", re.DOTALL)
_CLOSED = re.compile(r"""--[^\n]*|/\*.*?\*/|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|`[^`]*`|(?!/\*)[^'"`]""", re.DOTALL)
_COMMENTS = re.compile(r"""--[^\n]*|/\*.*?\*/|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|`[^`]*`""", re.DOTALL)
_INVALID_CHARACTER = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff]")
_PARAMETER_NAME = re.compile(PARAMETER_NAME)
_ESCAPE = re.compile(rf"\\({_CODE_POINT}|.)", re.DOTALL)
_ESCAPED = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}

# sqlglot would log parts of clients' texts before this module refuses them.
logging.getLogger("sqlglot").setLevel(logging.ERROR)

_PrimaryParser = Callable[[BaseParser, Token], exp.Expr | None]


@dataclass(frozen=True)
class Text:
    """A text and the JSON pointer of the field that holds it; creates errors with their place.

    An expression that was compiled from SQL has its `tree`, which is not parsed again, and the `sql` text that the
    offsets in `tree` refer to. `is_accepted`: the text belongs to a job that was accepted before, possibly by a version
    with fewer limits. `literals` are the values of the text's placeholders, by offset; None if it may have none.
    """

    text: str
    pointer: str
    tree: Expression | None = None
    sql: str | None = None
    is_accepted: bool = False
    literals: Mapping[int, Expression] | None = field(default=None, compare=False)

    @cached_property
    def tokens(self) -> tuple[Token, ...]:
        """The tokens of the text, see `tokens_of`."""
        return tuple(_with_placeholders(self.text, _tokens(self)))

    @cached_property
    def expression(self) -> exp.Expr:
        """The syntax tree of the text, an expression, see `parse_expression`."""
        return _parse(self, exp.Condition)

    def error(self, code: str, detail: str, *, at: int | None = None, suggestions: Iterable[str] = ()) -> SpecError:
        """Returns a `SpecError`, with line and column if the offset `at` is known."""
        line = column = None
        if self.sql is not None and self.tree is None:
            # The offset is one in this text alone; `CompiledSql.locate` finds the place by the pointer.
            at = None
        if at is not None:
            text = self.text if self.sql is None else self.sql
            line = text.count("\n", 0, at) + 1
            column = at - text.rfind("\n", 0, at)
        return SpecError.of(
            code, detail, pointer=self.pointer, line=line, column=column, suggestions=tuple(suggestions)
        )

    def beyond(self, limit: Limit, found: int | None = None, *, at: int | None = None) -> SpecError:
        """Returns the error for a text that exceeds `limit`; `found` is the number in the text, None if unknown."""
        return self.error(CODE, limit.detail(found), at=at)

    def unsupported(self, construct: str, *, at: int | None = None, hint: str = "") -> SpecError:
        """Returns an `unsupported_construct` error that names `construct` and ends with `hint`."""
        detail = f"{construct} is not supported here."
        return self.error("unsupported_construct", detail + (f" {hint}" if hint else ""), at=at)


TextOf = Callable[[str, str], Text]
"""Creates the `Text` for an expression and its JSON pointer."""


def _with_place(parse: _PrimaryParser) -> _PrimaryParser:
    def with_place(parser: BaseParser, token: Token) -> exp.Expr | None:
        node = parse(parser, token)
        if node is not None:
            node.meta.setdefault("start", token.start)
        return node

    return with_place


def _placeholder(_parser: BaseParser, token: Token) -> exp.Placeholder:
    return exp.Placeholder(this=token.text.removeprefix(":")) if token.text != "?" else exp.Placeholder()


class _Parser(SparkParser):
    # sqlglot stores the place of names only. It would accept a placeholder in place of a name too.
    PRIMARY_PARSERS: ClassVar = {
        type_: _with_place(parse)
        for type_, parse in {**SparkParser.PRIMARY_PARSERS, TokenType.PLACEHOLDER: _placeholder}.items()
    }
    PLACEHOLDER_PARSERS: ClassVar = {TokenType.PARAMETER: SparkParser.PLACEHOLDER_PARSERS[TokenType.PARAMETER]}
    COLUMN_OPERATORS: ClassVar = {
        type_: parse for type_, parse in SparkParser.COLUMN_OPERATORS.items() if type_ is not TokenType.PLACEHOLDER
    }
    FUNCTIONS: ClassVar = {}
    FUNCTION_PARSERS: ClassVar = {
        **{name: SparkParser.FUNCTION_PARSERS[name] for name in ("CAST", "TRY_CAST", "EXTRACT")},
        **FUNCTIONS_WITH_WORDS,
    }
    NO_PAREN_FUNCTIONS: ClassVar = {}
    # sqlglot would read `array(1)[0]` as an array with the element 0.
    ARRAY_CONSTRUCTORS: ClassVar = {}
    # Otherwise SESSION(…), a session window, would be an unexpected parenthesis.
    FUNC_TOKENS: ClassVar = {*SparkParser.FUNC_TOKENS, TokenType.SESSION}
    NO_PAREN_FUNCTION_PARSERS: ClassVar = {"CASE": SparkParser.NO_PAREN_FUNCTION_PARSERS["CASE"]}
    # In Spark `||` has the precedence of `+`.
    TERM: ClassVar = {**SparkParser.TERM, TokenType.DPIPE: exp.DPipe}

    def _parse_bitwise(self) -> exp.Expr | None:
        """Parses bitwise operators with Spark's precedence. In sqlglot, all of them have the same."""
        operands, operators = [self._parse_term()], list[BitOperator]()
        while (found := self._bit_operator()) is not None:
            while operators and operators[-1].binding >= found.binding:
                self._apply_bit_operator(operators.pop(), operands)
            operators.append(found)
            operands.append(self._parse_term())
        while operators:
            self._apply_bit_operator(operators.pop(), operands)
        return operands[0]

    def _bit_operator(self) -> BitOperator | None:
        for size in (3, 2, 1):
            tokens = self._tokens[self._index : self._index + size]
            found = BIT_OPERATORS.get("".join(token.text for token in tokens))
            # The tokens of `>>` touch; those of a string in quotes are longer than its text.
            if found is not None and len(tokens) == size and tokens[-1].end - tokens[0].start < len(found.sign):
                self._advance(size)
                return found
        return None

    def _apply_bit_operator(self, operator: BitOperator, operands: list[exp.Expr | None]) -> None:
        right, left = operands.pop(), operands.pop()
        if left is None or right is None:
            self.raise_error(f"An operand of {operator.sign} is missing")
        else:
            operands.append(operator.build(left, right))

    def _parse_table_alias(self, alias_tokens: Collection[TokenType] | None = None) -> exp.TableAlias | None:
        """Keeps the number of MAX RECURSION LEVEL after the name of a common table expression."""
        alias = super()._parse_table_alias(alias_tokens)
        if alias is not None and self._match_text_seq("MAX", "RECURSION", "LEVEL"):
            alias.meta[LEVELS] = self._curr.text if self._curr else ""
            self._advance()
        return alias

    def _parse_hint(self) -> exp.Hint | None:
        """Keeps the comment's text and offset: `service.sql.statements.tables.join_hints` reads it."""
        if not self._match(TokenType.HINT):
            return None
        hint = exp.Hint(expressions=[exp.Var(this=self._prev.text)])
        hint.meta["start"] = self._prev.start
        return hint

    EXPRESSION_PARSERS: ClassVar = {
        **SparkParser.EXPRESSION_PARSERS,
        # sqlglot's own parser does not accept a query that begins with a parenthesis.
        exp.Select: lambda parser: parser._parse_query_modifiers(
            parser._parse_set_operations(parser._parse_select(nested=True, parse_subquery_alias=False))
        ),
    }


class _Dialect(Spark):
    Parser = _Parser


def parse_expression(source: Text) -> exp.Expr:
    """Parses a single expression.

    Raises SpecError `sql_syntax`, `query_too_deep`, `unsupported_construct`.
    """
    return source.expression


def parse_query(source: Text) -> exp.Expr:
    """Parses a single query: a SELECT, a set operation or a query in parentheses.

    Raises SpecError `sql_syntax`, `query_too_deep`, `unsupported_construct`.
    """
    return _parse(source, exp.Select)


def tokens_of(source: Text) -> list[Token]:
    """Returns the tokens of a text within the limits; the `text` of a string literal is its value. A placeholder is one
    token, `:name` or `?`.

    Raises SpecError `sql_syntax`, `query_too_deep`, `unsupported_construct`.
    """
    return list(source.tokens)


def tokens_of_schema(source: Text) -> list[Token]:
    """Returns the tokens of the text of a schema, in which a colon may stand before a type. Raises as `tokens_of`."""
    return list(_tokens(source))


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
    if not source.is_accepted and not source.text.isascii():
        check_names(source, tokens)
    return tuple(_with_spark_strings(source, tokens))


def place_of(source: Text, keyword: TokenType, within: int | None = None) -> int | None:
    """Returns the offset of the last `keyword` of the SELECT around the offset `within`, nested SELECTs excluded.

    Without `within`, or if no SELECT begins before it, of the outermost SELECT. Raises SpecError as `tokens_of` does.
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
    """Refuses hints that belong to no SELECT: the parser skips them as comments."""
    read = {token.start for token in tokens if token.token_type is TokenType.HINT}
    for comment in _COMMENTS.finditer(source.text):
        if comment.group().startswith("/*+") and comment.start() not in read:
            hint = "Write all hints of a SELECT in one comment, directly after SELECT."
            raise source.unsupported("A hint", at=comment.start(), hint=hint)


def _check_characters(source: Text) -> None:
    if len(source.text) > SQL_CHARACTERS.most:
        raise source.beyond(SQL_CHARACTERS, len(source.text), at=SQL_CHARACTERS.most)
    wrong = _INVALID_CHARACTER.search(source.text)
    if wrong is not None:
        character = ord(wrong.group())
        raise source.error("sql_syntax", f"SQL cannot contain the character U+{character:04X}.", at=wrong.start())


def _parse(source: Text, into: type[exp.Expr]) -> exp.Expr:
    tokens = tokens_of(source)
    while tokens and tokens[-1].token_type is TokenType.SEMICOLON:
        tokens.pop()
    for token in tokens:
        if token.token_type is TokenType.SEMICOLON:
            raise source.unsupported("A second statement", at=token.start, hint="Submit a job for each statement.")
        if token.token_type is TokenType.PIPE_GT:
            raise source.unsupported("The pipe operator |>", at=token.start, hint="Write SELECT … FROM …")
    if not tokens:
        raise source.error("sql_syntax", "The text is empty.", at=0)
    incomplete = dangling(tokens)
    if incomplete is not None:
        raise source.error("sql_syntax", f"Something is missing after '{incomplete.text}'.", at=incomplete.start)
    wrong_order = misplaced(tokens)
    if wrong_order is not None:
        raise source.error("sql_syntax", wrong_order[1], at=wrong_order[0].start)
    if into is exp.Select:
        _check_hints(source, tokens)
    try:
        trees = _Dialect().parser().parse_into(into, tokens, source.text)
    except ParseError as error:
        raise _syntax_error(source, error, tokens) from None
    except RecursionError:
        # For example a chain of NOT or of minus signs, which the check of brackets does not count.
        raise source.beyond(NESTING, at=longest_chain(tokens)) from None
    except (SqlglotError, ValueError) as error:
        raise source.error("sql_syntax", f"The text cannot be parsed: {_first_line(str(error))}.", at=0) from None
    tree = trees[0] if len(trees) == 1 else None
    if tree is None:
        detail = "The text is not an expression." if into is exp.Condition else "The text has no SELECT."
        raise source.error("sql_syntax", detail, at=0)
    _note_places(_check_depth(source, tree))
    return tree


def _token_error(source: Text, error: SqlglotError) -> SpecError:
    message = _UNREADABLE.fullmatch(str(error.__cause__))
    if message is None:
        # The text ends inside a quoted part or a comment.
        return _unclosed(source)
    detail = f"A {message['quote']} is not closed." if message["quote"] else f"{message['other']}."
    return source.error("sql_syntax", detail, at=int(message["at"]))


def _unclosed(source: Text) -> SpecError:
    at = 0
    while part := _CLOSED.match(source.text, at):
        at = part.end()
    if at < len(source.text):
        opening = source.text[at] if source.text[at] != "/" else "comment"
        return source.error("sql_syntax", f"A {opening} is not closed.", at=at)
    # Every quote is closed, so a comment inside a comment lacks its own end.
    return source.error("sql_syntax", "A comment is not closed.", at=max(source.text.rfind("/*"), 0))


def _syntax_error(source: Text, error: ParseError, tokens: Sequence[Token]) -> SpecError:
    detail, line, column = describe_parse_error(error, tokens)
    return SpecError.of("sql_syntax", detail, pointer=source.pointer, line=line, column=column)


def _check_depth(source: Text, tree: exp.Expr) -> list[exp.Expr]:
    """Returns the nodes of `tree`, each after its parent. Raises SpecError `query_too_deep`."""
    # Iterative, because a chain of operators is a deep tree without any nesting in the text.
    pending: list[tuple[exp.Expr, int]] = [(tree, 1)]
    nodes: list[exp.Expr] = []
    deepest, place = 0, None
    while pending:
        node, depth = pending.pop()
        nodes.append(node)
        if depth > deepest:
            deepest, place = depth, node
        for child in node.iter_expressions():
            chained = type(child) is type(node) and isinstance(node, exp.And | exp.Or | exp.SetOperation)
            pending.append((child, depth if chained else depth + 1))
    if deepest > OPERATOR_DEPTH.most:
        starts = [node.meta["start"] for node in place.walk() if "start" in node.meta] if place is not None else []
        raise source.beyond(OPERATOR_DEPTH, deepest, at=min(starts, default=None))
    return nodes


def _note_places(nodes: Sequence[exp.Expr]) -> None:
    """Stores `FIRST` in every node, in one pass: a search below each node would take time times the depth. Each of
    `nodes` comes after its parent.
    """
    for node in reversed(nodes):
        meta = node.meta
        first = meta.get(FIRST)
        start = meta.get("start")
        if start is not None and (first is None or start < first):
            meta[FIRST] = first = start
        if first is not None and node.parent is not None:
            above = node.parent.meta
            above[FIRST] = min(above.get(FIRST, first), first)


def _with_spark_strings(source: Text, tokens: list[Token]) -> list[Token]:
    result: list[Token] = []
    for token in tokens:
        if _is_suffix(token, result):
            # sqlglot tokenizes `5L` as `5::BIGINT`. It becomes one token again, because Spark reads its digits.
            number, cast = result[-2:]
            result[-2:] = [
                Token(TokenType.NUMBER, number.text + token.text, cast.line, cast.col, token.start, token.end)
            ]
        elif token.token_type is not TokenType.STRING:
            if token.token_type is TokenType.L_PAREN and result and result[-1].token_type is TokenType.WINDOW:
                # The clause WINDOW begins with a name; this is the function.
                named = result.pop()
                result.append(Token(TokenType.VAR, named.text, named.line, named.col, named.start, named.end))
            result.append(token)
        else:
            _append_string(source, token, result)
    for token in result:
        if token.token_type is TokenType.STRING and any("\ud800" <= character <= "\udfff" for character in token.text):
            raise source.error("sql_syntax", "A string contains half of a surrogate pair.", at=token.start)
    return result


def _with_placeholders(text: str, tokens: Iterable[Token]) -> list[Token]:
    """Joins the colon and the name of each placeholder. The name may be a keyword."""
    result: list[Token] = []
    for token in tokens:
        before = result[-1] if result else None
        if token.token_type is TokenType.QDCOLON:
            # `?::INT`
            middle = token.start + 1
            result.append(Token(TokenType.PLACEHOLDER, "?", token.line, token.col - 2, token.start, token.start))
            result.append(Token(TokenType.DCOLON, "::", token.line, token.col, middle, token.end))
        elif (
            before is not None
            and before.token_type is TokenType.COLON
            and before.end + 1 == token.start
            and _PARAMETER_NAME.fullmatch(text, token.start, token.end + 1)
        ):
            joined = text[before.start : token.end + 1]
            result[-1] = Token(TokenType.PLACEHOLDER, joined, token.line, token.col, before.start, token.end)
        else:
            result.append(token)
    return result


def _append_string(source: Text, token: Token, result: list[Token]) -> None:
    raw = source.text[token.start : token.end + 1]
    last = result[-1] if result else None
    value = unescape(raw[1:-1])
    touches = last is not None and last.token_type is TokenType.STRING and last.end + 1 == token.start
    if last is not None and touches and source.text[last.end] == raw[0]:
        # A doubled quote is an escaped quote.
        result[-1] = _string(last, last.text + raw[0] + value, token.end)
    else:
        result.append(_string(token, value, token.end))


def _is_suffix(token: Token, before: list[Token]) -> bool:
    """Whether `token` is the suffix L, S or Y of a number: sqlglot gives number, `::` and type the same start then."""
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
    """Returns the value of a string literal as Spark reads it; `raw` is the text between the quotes."""
    if "\\" not in raw:
        return raw

    def character(match: re.Match[str]) -> str:
        escape = match.group(1)
        if len(escape) == 1:
            return _ESCAPED.get(escape, escape)
        code = int(escape, 8) if escape[0] in "0123" else int(escape[1:], 16)
        return chr(code) if code <= 0x10FFFF else "\ufffd"

    value = _ESCAPE.sub(character, raw)
    # Two escapes may be the halves of one surrogate pair.
    return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _first_line(message: str) -> str:
    return message.strip().splitlines()[0].rstrip(".")[:200] if message.strip() else "unknown reason"

"""The formats of files, and how text files are read: the options of a table, with the names that users of Spark and
pandas write.

`options` of a job may have any of these names; the job is stored with ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from .model import Flag, Frozen

CORRUPT_RECORD = "_corrupt_record"

_PATTERN_LETTERS = frozenset("yuMdEaHhmsSXxzVO")
"""The letters of Spark's date and time patterns that are accepted."""


class TableFormat(StrEnum):
    """The format of the files of a table."""

    PARQUET = "parquet"
    CSV = "csv"
    JSON = "json"
    ORC = "orc"
    AVRO = "avro"
    XML = "xml"
    DELTA = "delta"

    @property
    def is_text(self) -> bool:
        """Whether the files have no schema: CSV, JSON and XML."""
        return self in {TableFormat.CSV, TableFormat.JSON, TableFormat.XML}

    @property
    def is_parquet(self) -> bool:
        """Whether the data files are Parquet files: those of Parquet and Delta tables."""
        return self in {TableFormat.PARQUET, TableFormat.DELTA}


FORMAT_ALIASES = {"jsonl": TableFormat.JSON, "ndjson": TableFormat.JSON}
"""Other names of formats. Each line of a file in this format is a JSON document, as in `json` without `multi_line`."""

FormatName = Annotated[
    TableFormat,
    BeforeValidator(lambda value: FORMAT_ALIASES.get(value, value) if isinstance(value, str) else value),
]


class ParseMode(StrEnum):
    """What happens to a record that does not match the schema."""

    FAILFAST = "failfast"
    PERMISSIVE = "permissive"
    DROPMALFORMED = "dropmalformed"


class Encoding(StrEnum):
    """The character sets that Spark reads line by line, under Spark's names."""

    UTF8 = "utf-8"
    LATIN1 = "iso-8859-1"
    ASCII = "us-ascii"


_ENCODINGS = {
    "utf8": Encoding.UTF8,
    "utf8sig": Encoding.UTF8,
    **dict.fromkeys(("latin1", "l1", "iso88591"), Encoding.LATIN1),
    **dict.fromkeys(("ascii", "usascii"), Encoding.ASCII),
}

_ALIASES = {
    **dict.fromkeys(("sep", "separator", "delim"), "delimiter"),
    "quotechar": "quote",
    "escapechar": "escape",
    **dict.fromkeys(("navalues", "nullstr", "nullif"), "null_value"),
    "charset": "encoding",
    "inferschema": "infer_schema",
    "skipinitialspace": "ignore_leading_white_space",
    "parsemode": "mode",
}
"""Names that differ from ours in more than letter case and underscores."""


def option_name(name: str) -> str:
    """Returns our name of an option, which may be written as in Spark or pandas; any other name unchanged.

    >>> [option_name(name) for name in ("sep", "nullValue", "na_values", "columnNameOfCorruptRecord", "nope")]
    ['delimiter', 'null_value', 'null_value', 'column_name_of_corrupt_record', 'nope']
    """
    folded = name.replace("_", "").lower()
    return _ALIASES.get(folded) or _OWN_NAMES.get(folded) or name


def _encoding(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    known = _ENCODINGS.get(re.sub(r"[-_ ]", "", value.lower()))
    if known is None:
        raise PydanticCustomError(
            "encoding_not_supported",
            "Spark reads text as UTF-8, ISO-8859-1 (latin1) or US-ASCII. Convert the files to UTF-8.",
        )
    return known


def _one_text(value: Any) -> Any:
    """Returns the only element of a list, as pandas' `na_values` has it."""
    if not isinstance(value, list | tuple):
        return value
    if len(value) != 1:
        raise PydanticCustomError(
            "one_null_value", "Spark reads one text as NULL: give one, and compare with the others in the query."
        )
    return value[0]


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _check_pattern(pattern: Any) -> Any:
    """Checks the letters of a text. Other values are left to the type's own check, which follows."""
    if not isinstance(pattern, str):
        return pattern
    letters = set(re.sub(r"'[^']*'", "", pattern))
    wrong = sorted(
        letter for letter in letters - _PATTERN_LETTERS if (letter.isascii() and letter.isalpha()) or letter in "'[]{}#"
    )
    if wrong:
        raise PydanticCustomError(
            "date_pattern",
            "A pattern consists of the letters y, M, d, H, h, m, s, S, a, E and X, of signs, and of text in single "
            "quotes, such as dd/MM/yyyy or yyyy-MM-dd'T'HH:mm:ss. It must not contain {wrong}.",
            {"wrong": " ".join(wrong)},
        )
    return pattern


_Character = r"^[^\r\n]$"
_Pattern = Annotated[
    str,
    Field(min_length=1, max_length=64, pattern=r"^([yuMdEaHhmsSXxzVO]|'[^']*'|[^A-Za-z'\[\]{}#])+$"),
    BeforeValidator(_check_pattern),
]


class ReadOptions(Frozen):
    """How files are read. Spark gets only these options.

    The names of Spark and pandas are also accepted: `sep`, `nullValue`, `na_values`, `quotechar`, `dateFormat` and so
    on. The job is stored with those below.
    """

    header: Flag | None = Field(
        default=None,
        description="CSV: the first line of each file names the columns. The default is false if the table has a "
        "`schema`. Otherwise it is true, unless the first line has only numbers, dates and empty values.",
        json_schema_extra={"default": None},
    )
    delimiter: str = Field(default=",", pattern=_Character, description="CSV: the character between two values.")
    quote: str = Field(default='"', pattern=_Character, description="CSV: the character around a quoted value.")
    escape: str | None = Field(
        default=None,
        pattern=_Character,
        description="CSV: the character before a quote in a quoted value. By default, the quote is doubled.",
    )
    comment: str | None = Field(
        default=None, pattern=_Character, description="CSV: ignores lines that begin with this character."
    )
    null_value: Annotated[str, BeforeValidator(_one_text)] = Field(
        default="", max_length=64, description="CSV and XML: the text of NULL."
    )
    ignore_leading_white_space: Flag = Field(default=False, description="CSV: removes blanks before a value.")
    ignore_trailing_white_space: Flag = Field(default=False, description="CSV: removes blanks after a value.")
    encoding: Annotated[Encoding, BeforeValidator(_encoding)] = Field(
        default=Encoding.UTF8, description="CSV and XML: the character set of the files."
    )
    date_format: _Pattern | None = Field(
        default=None, description="Spark's pattern of DATE values, such as `dd/MM/yyyy`."
    )
    timestamp_format: _Pattern | None = Field(default=None, description="Spark's pattern of TIMESTAMP values.")
    infer_schema: Flag = Field(
        default=True,
        description="If false, columns without a declared type are STRING.",
    )
    multi_line: Flag = Field(
        default=False,
        description="JSON: a document may span several lines. CSV: a quoted value may contain line breaks (at most "
        "131,072 characters), all rows of a file end with the same line break, and one task reads each file.",
    )
    mode: Annotated[ParseMode, BeforeValidator(_lower)] = Field(
        default=ParseMode.FAILFAST,
        description="CSV, JSON and XML, batch jobs: whether a record that does not match the schema fails the job "
        "(`failfast`), is left out (`dropmalformed`), or has NULL for such values and its text in "
        "`column_name_of_corrupt_record` (`permissive`). The metrics count such records.",
    )
    column_name_of_corrupt_record: str = Field(
        default=CORRUPT_RECORD,
        min_length=1,
        max_length=255,
        description="Mode `permissive`: the STRING column, added to the table, with the text of such a record.",
    )
    row_tag: str | None = Field(
        default=None,
        pattern="^[^\\s<>/=\"'&]{1,255}$",
        description="XML, required: the name of the element that is a row.",
        examples=["order"],
    )
    merge_schema: Flag = Field(
        default=False,
        description="Parquet, ORC, Avro: the table has the columns of all files, which may differ. A column that a "
        "file does not have is NULL there; numbers get the wider type.",
    )

    @model_validator(mode="before")
    @classmethod
    def _accept_other_names(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        found: dict[Any, Any] = {}
        for name, given in value.items():
            own = option_name(name) if isinstance(name, str) else name
            if own in found:
                detail = f"'{name}' is another name of '{own}': give the option once."
                details = InitErrorDetails(type=PydanticCustomError("renamed_field", detail), loc=(name,), input=None)
                raise ValidationError.from_exception_data("object", [details])
            found[own] = given
        return found

    @model_validator(mode="after")
    def _options_fit_together(self) -> Self:
        if self.delimiter == self.quote:
            raise PydanticCustomError("delimiter_is_quote", "'delimiter' and 'quote' must be different characters.")
        if self.multi_line and (self.escape is not None or self.comment is not None):
            raise PydanticCustomError(
                "multi_line_escape", "'escape' and 'comment' cannot be combined with 'multi_line': set it to false."
            )
        return self

    @property
    def has_header(self) -> bool:
        """Whether the first line names the columns. It does not if that is not known yet."""
        return bool(self.header)

    @property
    def escape_character(self) -> str:
        """The character before a quote within a quoted value: the quote itself, as in RFC 4180, if it is not set."""
        return self.quote if self.escape is None else self.escape


_OWN_NAMES = {name.replace("_", ""): name for name in ReadOptions.model_fields}

OPTIONS_BEFORE_10 = ("header", "delimiter", "quote", "null_value", "multi_line")
"""The options that workers of job format 9 and earlier read."""

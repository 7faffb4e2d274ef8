"""The filter language: a condition of SQL's `where`, as `reward > 0.5 and finish is not null`.

In: a text, and the columns that it may name. Out: an expression for SQL (`to_sql`) or for Arrow
(`to_arrow`); both choose the same rows. DuckDB parses the text and runs nothing of it: its tree is
walked, and what is not known here is refused. Columns compare with values and other columns by = ==
!= <> < <= > >=, between, in, like and is null; and, or, not join conditions. Mistakes are
UserErrors of one line that name the place, before a row is read. `parse` bounds a filter for every
database.
"""

import difflib
import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Boolean, ColumnElement, Integer, cast
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from headrace.errors import UserError

if TYPE_CHECKING:
    import duckdb

MAX_CONDITIONS = 200
"""Conditions in one filter, and parentheses: SQLite takes expressions of a thousand levels, and
joins one more with each condition; DuckDB takes its time for parentheses that nobody closes."""
MAX_CHARACTERS = 10_000
MAX_DEPTH = 12
"""Parentheses and `not` in one another: SQLite's parser has a stack of 100, and each may take 6."""
_QUERY = "SELECT * FROM t WHERE "
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "COMPARE_EQUAL": operator.eq,
    "COMPARE_NOTEQUAL": operator.ne,
    "COMPARE_LESSTHAN": operator.lt,
    "COMPARE_LESSTHANOREQUALTO": operator.le,
    "COMPARE_GREATERTHAN": operator.gt,
    "COMPARE_GREATERTHANOREQUALTO": operator.ge,
}
_LIKE = {"~~": False, "!~~": True, "like_escape": False, "not_like_escape": True}
"""DuckDB's names of `like`, and whether each is negated."""
Node = dict[str, Any]


class Filter(NamedTuple):
    """A condition: the text, and DuckDB's tree of it or of a part of it."""

    text: str
    node: Node

    def parts(self) -> list["Filter"]:
        """Conditions that must all hold."""
        if self.node["type"] != "CONJUNCTION_AND":
            return [self]
        return [Filter(self.text, node) for node in self.node["children"]]

    def columns(self) -> set[str]:
        """Names of all columns."""
        return {_name(node) for node in _columns(self.node)}

    def check(self, known: Iterable[str]) -> None:
        """UserError for a column that is not among these."""
        for node in _columns(self.node):
            place = _place(self.text, node["query_location"])
            check_column(_name(node), known, place, note=" (text has single quotes)")

    def mistake(self, said: str, node: Node) -> UserError:
        """An error that names the place of a node."""
        return UserError(f"{_place(self.text, node['query_location'])}: {_line(said)}")


def parse(text: str) -> Filter:
    """The filter in `text`; UserError where it is not one."""
    if len(text) > MAX_CHARACTERS:
        raise UserError(f"filter: more than {MAX_CHARACTERS:,} characters; use fewer")
    if text.count("(") > MAX_CONDITIONS:
        raise UserError(f"filter: more than {MAX_CONDITIONS} parentheses; use fewer")
    if text.encode(errors="ignore").decode() != text:
        raise UserError("filter: text holds a character that no column can have")
    read = _read(_QUERY + text)
    if read["error"]:
        said = _line(read["error_message"])
        if said.startswith("Max expression depth"):
            said = f"more than {MAX_DEPTH} parentheses and `not` in one another; use fewer"
        if said.endswith('"contains"'):
            said += "; write like '%text%'"
        raise UserError(f"{_place(text, int(read.get('position', -1)))}: {said}")
    nodes = [statement["node"] for statement in read["statements"]]
    empty = {**_read(_QUERY + "true")["statements"][0]["node"], "where_clause": None}
    if [{**node, "where_clause": None} for node in nodes] != [empty]:
        raise UserError("filter: write one condition and nothing behind it")
    if sum(1 for _ in _columns(nodes[0]["where_clause"])) > MAX_CONDITIONS:
        raise UserError(f"filter: more than {MAX_CONDITIONS} conditions; use fewer")
    return Filter(text, nodes[0]["where_clause"])


def check_column(name: str, known: Iterable[str], place: str, note: str = "") -> None:
    """Raise a UserError at `place` for an unknown column; it names the nearest known one."""
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(sorted(known))}"
        raise UserError(f"{place}: no column {_line(name)}; {hint}{note}")


def to_sql(tree: Filter, columns: Mapping[str, Any]) -> ColumnElement[bool]:
    """The filter as an SQL expression; values are bound, never spliced."""
    return _FilterCompiler(tree, columns, _SQL).condition(tree.node)


def to_arrow(tree: Filter, schema: pa.Schema) -> pc.Expression:
    """The filter as an Arrow expression over the columns of `schema`."""
    return _FilterCompiler(tree, {field.name: field for field in schema}, _ARROW).condition(
        tree.node
    )


class _Language(NamedTuple):
    """Expressions that differ between SQL and Arrow. `column`: true and false as 1 and 0, since
    these have an order. `like`: by the pattern's characters, each in the second place where it may
    be a wildcard and in the first where it was escaped."""

    kind: Callable[[Any], type]
    column: Callable[[Any], Any]
    is_null: Callable[[Any], Any]
    is_in: Callable[[Any, list[Any]], Any]
    like: Callable[[Any, list[tuple[str, str]]], Any]


class _FilterCompiler:
    """A filter over known columns, in a language."""

    def __init__(self, tree: Filter, columns: Mapping[str, Any], language: _Language) -> None:
        tree.check(columns)
        self._mistake, self._columns, self._language = tree.mistake, columns, language

    def condition(self, node: Node) -> Any:
        """An expression that is true, false or null, as SQL has it."""
        kind = node["type"]
        if kind in _COMPARE:
            return _COMPARE[kind](*self._operands(node, [node["left"], node["right"]]))
        if kind in ("CONJUNCTION_AND", "CONJUNCTION_OR"):
            join = operator.and_ if kind == "CONJUNCTION_AND" else operator.or_
            return reduce(join, map(self.condition, node["children"]))
        if kind == "OPERATOR_NOT":
            return ~self.condition(node["children"][0])
        if kind in ("OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"):
            missing = self._language.is_null(*self._operands(node, node["children"]))
            return missing if kind == "OPERATOR_IS_NULL" else ~missing
        if kind == "COMPARE_BETWEEN":
            ends = [node["input"], node["lower"], node["upper"]]
            value, low, high = self._operands(node, ends)
            return (value >= low) & (value <= high)
        if kind == "COMPARE_IN":
            column, *values = self._one_column(node, node["children"])
            return self._language.is_in(column, values)
        if kind == "COLUMN_REF" and self._kind(node) is bool:
            return self._operands(node, [node])[0] == 1
        if kind == "FUNCTION" and node["is_operator"] and node["function_name"] in _LIKE:
            found = self._like(node, [part["expression"] for part in node["arguments"]])
            return ~found if _LIKE[node["function_name"]] else found
        raise self._mistake("this is no condition on a column", node)

    def _operands(self, node: Node, parts: Sequence[Node]) -> list[Any]:
        """Compile the operands: columns, and values as they compare with these."""
        kinds = [self._kind(part) for part in parts if part["type"] == "COLUMN_REF"]
        if len({kind is str for kind in kinds}) != 1:
            said = "text compares with text only" if kinds else "a condition names a column"
            raise self._mistake(said, node)
        return [
            self._language.column(self._columns[_name(part)])
            if part["type"] == "COLUMN_REF"
            else self._value(part, kinds[0])
            for part in parts
        ]

    def _one_column(self, node: Node, parts: Sequence[Node]) -> list[Any]:
        """Operands of which the first one is a column and the others are values."""
        if parts[0]["type"] != "COLUMN_REF" or any(_columns(parts[1:])):
            raise self._mistake("a column comes first here, and then values", node)
        return self._operands(node, parts)

    def _like(self, node: Node, parts: Sequence[Node]) -> Any:
        column, pattern, escape = (*self._one_column(node, parts), "")[:3]
        if not isinstance(pattern, str) or len(escape) > 1:
            raise self._mistake("like takes text, and escape one character", node)
        escaped = re.escape(escape) or "(?!)"
        return self._language.like(column, re.findall(f"(?s){escaped}(.)|(.)", pattern))

    def _kind(self, node: Node) -> type:
        kind = self._language.kind(self._columns[_name(node)])
        if kind not in (str, int, float, bool):
            raise self._mistake(f"{_name(node)} cannot be compared", node)
        return kind

    def _value(self, node: Node, column: type) -> str | int | float:
        """A value as a column of this kind compares with it; UserError where it does not."""
        if "literal" not in node:
            raise self._mistake("columns compare with values and columns only", node)
        kind, text = node["literal"]["kind"], str(node["literal"]["text"])
        if kind == "NULL_LITERAL":
            raise self._mistake("nothing equals null; write is null or is not null", node)
        if (kind == "STRING") != (column is str):
            wanted = "quoted text" if column is str else "a number, true or false"
            raise self._mistake(f"the column compares with {wanted}, not with {text:.20}", node)
        if kind == "STRING":
            if "\0" in text:
                raise self._mistake("text holds a character that no column can have", node)
            return text
        if kind == "BOOLEAN":
            text = str(int(text == "true"))
        size = float(text)
        if column is bool and size not in (0, 1):
            raise self._mistake(f"the column compares with true and false, not {text:.20}", node)
        if not math.isfinite(size):
            raise self._mistake(f"the number {text:.20} is too large", node)
        if column is float or kind == "NUMERIC":
            return size
        if abs(size) > 1e19 or abs(int(text)) >= 2**63:
            said = f"{text:.20} is beyond whole numbers of 64 bits; write {size:g}"
            raise self._mistake(said, node)
        return int(text)


class _Like(FunctionElement[bool]):
    """`column like pattern`; the second pattern is for SQLite's `glob`, as its `like` ignores
    case."""

    inherit_cache = True
    type = Boolean()


@compiles(_Like)
def _compile_like(element: _Like, compiler: SQLCompiler, **options: Any) -> str:
    column, like, _ = (compiler.process(part, **options) for part in element.clauses)
    return f"({column} LIKE {like} ESCAPE '!')"


@compiles(_Like, "sqlite")
def _compile_glob(element: _Like, compiler: SQLCompiler, **options: Any) -> str:
    column, _, glob = (compiler.process(part, **options) for part in element.clauses)
    return f"({column} GLOB {glob})"


def _pattern(
    pieces: list[tuple[str, str]], many: str, one: str, quote: Callable[[str], str]
) -> str:
    wild = {"%": many, "_": one}
    return "".join(wild.get(plain) or quote(literal or plain) for literal, plain in pieces)


def _sql_like(column: Any, pieces: list[tuple[str, str]]) -> Any:
    like = _pattern(pieces, "%", "_", lambda char: re.sub("[!%_]", r"!\g<0>", char))
    return _Like(
        column, like, _pattern(pieces, "*", "?", lambda c: re.sub(r"[*?[]", r"[\g<0>]", c))
    )


def _arrow_like(column: Any, pieces: list[tuple[str, str]]) -> Any:
    return pc.match_substring_regex(column, f"(?s)^{_pattern(pieces, '.*', '.', re.escape)}$")


def _arrow_kind(field: pa.Field) -> type:
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return str
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return bool if pa.types.is_boolean(kind) else int
    return float if pa.types.is_floating(kind) else object


def _arrow_column(field: pa.Field) -> pc.Expression:
    if pa.types.is_dictionary(field.type):
        return pc.field(field.name).cast(field.type.value_type)
    found = pc.field(field.name)
    return found.cast(pa.int8()) if pa.types.is_boolean(field.type) else found


_SQL = _Language(
    kind=lambda column: column.type.python_type,
    column=lambda c: cast(c, Integer) if c.type.python_type is bool else c,
    is_null=lambda column: column.is_(None),
    is_in=lambda column, values: column.in_(values),
    like=_sql_like,
)
_ARROW = _Language(
    kind=_arrow_kind,
    column=_arrow_column,
    is_null=lambda column: column.is_null(),
    is_in=lambda column, values: pc.if_else(
        column.is_null(), pa.scalar(None, pa.bool_()), column.isin(values)
    ),
    like=_arrow_like,
)


def _columns(tree: Any) -> Iterator[Node]:
    """All columns that are named in a tree."""
    if isinstance(tree, dict) and tree.get("type") == "COLUMN_REF":
        yield tree
    elif isinstance(tree, dict | list):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from _columns(part)


def _name(node: Node) -> str:
    return ".".join(node["column_names"])


def _place(text: str, position: int) -> str:
    """Name a place in the filter by its byte in the query."""
    before = text.encode()[: max(0, position - len(_QUERY))].decode(errors="ignore")
    known = 0 <= position - len(_QUERY) <= len(text.encode())
    return f"filter, character {len(before) + 1}" if known else "filter"


def _line(text: str) -> str:
    return " ".join(text.splitlines())


def _read(query: str) -> Any:
    answer = _parser().cursor().execute("SELECT json_serialize_sql(?)", [query]).fetchall()
    return json.loads(answer[0][0])


@cache
def _parser() -> "duckdb.DuckDBPyConnection":
    import duckdb  # only who filters pays for it

    settings = {"enable_external_access": "false", "threads": "1"}
    # DuckDB counts two levels more.
    return duckdb.connect(config={**settings, "max_expression_depth": f"{MAX_DEPTH + 2}"})

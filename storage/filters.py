"""The filter language: `reward > 0.5 and (status = 'finished' or length < 10)`.

A condition is `column op literal`; operators are = == != < <= > >= and `contains` (text); literals
are numbers, quoted text, true, false and null. Conditions join with and, or, not and parentheses.
`parse` gives a small tree, `to_sql` and `to_arrow` turn it into an expression over known columns.
A column of true and false compares with these and with 1 and 0; true is 1 elsewhere. Mistakes are
UserErrors that name the column and the nearest known one. Whatever `parse` lets through is small
enough for every database: at most MOST_CONDITIONS, parentheses and `not` DEEPEST in one another.
"""

import difflib
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import ColumnElement, Integer, and_, cast, not_, or_

from headrace.errors import UserError

Value = str | int | float | bool | None
MOST_CONDITIONS = 200
"""Conditions in one filter: SQLite takes expressions of a thousand levels, and joins one more with
each condition."""
DEEPEST = 12
"""Parentheses and `not` in one another: SQLite's parser has a stack of 100, and each may take 5."""
_LARGEST = 2**63 - 1
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<op>==|!=|<=|>=|=|<|>)
      | (?P<paren>[()])
      | (?P<number>-?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)
      | (?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")
      | (?P<word>[A-Za-z_][A-Za-z0-9_./]*)
    )""",
    re.VERBOSE,
)
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_WORDS: dict[str, Value] = {"true": True, "false": False, "null": None}


@dataclass(frozen=True)
class Condition:
    """One `column op literal`."""

    column: str
    op: str
    value: Value


@dataclass(frozen=True)
class Junction:
    """`and`, `or` of its parts, or `not` of its only part."""

    kind: Literal["and", "or", "not"]
    parts: tuple["Filter", ...]


Filter = Condition | Junction


def parse(text: str) -> Filter:
    """The filter in `text`; UserError where it is not one."""
    return _Parser(text).parse()


def columns_of(tree: Filter) -> set[str]:
    """Names of all columns in a filter."""
    if isinstance(tree, Condition):
        return {tree.column}
    return set().union(*(columns_of(part) for part in tree.parts))


def check_columns(tree: Filter, known: Mapping[str, Any], place: str = "filter") -> None:
    """UserError for a column that does not exist, naming the nearest one that does; it begins with
    `place`, where the column was named."""
    for column in sorted(columns_of(tree) - set(known)):
        near = difflib.get_close_matches(column, known, n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]}?" if near else f"; there are: {', '.join(sorted(known))}"
        raise UserError(f"{place}: no column {column}{hint}")


def to_sql(tree: Filter, columns: Mapping[str, Any]) -> ColumnElement[bool]:
    """The filter as an SQL expression; values are bound, never spliced."""
    check_columns(tree, columns)
    return _sql(tree, columns)


def to_arrow(tree: Filter, schema: pa.Schema) -> pc.Expression:
    """The filter as an Arrow expression over the columns of `schema`."""
    check_columns(tree, {field.name: field for field in schema})
    return _arrow(tree, schema)


def _sql(tree: Filter, columns: Mapping[str, Any]) -> ColumnElement[bool]:
    if isinstance(tree, Junction):
        parts = [_sql(part, columns) for part in tree.parts]
        if tree.kind == "not":
            return not_(parts[0])
        return (and_ if tree.kind == "and" else or_)(*parts)
    column: Any = columns[tree.column]
    value = _comparable(tree, column.type.python_type)
    if value is None:
        return column.is_(None) if tree.op == "=" else column.is_not(None)
    if isinstance(value, bool):
        column, value = cast(column, Integer), int(value)  # Booleans have no order.
    if tree.op == "contains":
        found = column.contains(value, autoescape=True)
    else:
        found = _COMPARE[tree.op](column, value)
    # A null compares as false (and unequal to everything), so that `not` means what it says.
    return or_(column.is_(None), found) if tree.op == "!=" else and_(column.is_not(None), found)


def _arrow(tree: Filter, schema: pa.Schema) -> Any:
    if isinstance(tree, Junction):
        parts = [_arrow(part, schema) for part in tree.parts]
        if tree.kind == "not":
            return ~parts[0]
        joined = parts[0]
        for part in parts[1:]:
            joined = joined & part if tree.kind == "and" else joined | part
        return joined
    kind = schema.field(tree.column).type
    field = pc.field(tree.column)
    if pa.types.is_dictionary(kind):
        kind, field = kind.value_type, field.cast(kind.value_type)
    value = _comparable(tree, _python_type(kind))
    if value is None:
        return field.is_null() if tree.op == "=" else ~field.is_null()
    if isinstance(value, bool):
        field, value = field.cast(pa.int8()), int(value)
    if tree.op == "contains":
        found = pc.match_substring(field, str(value))
    else:
        found = _COMPARE[tree.op](field, pc.scalar(value))
    return pc.coalesce(found, pc.scalar(tree.op == "!="))


def _comparable(condition: Condition, column_type: type) -> Value:
    """The literal as a column of this type compares with it; UserError where it does not."""
    value, column = condition.value, condition.column
    if column_type not in (str, int, float, bool):
        raise UserError(f"filter: {column} cannot be compared")
    if value is None:
        if condition.op not in ("=", "!="):
            raise UserError(f"filter: null goes with = and != only ({column})")
        return None
    is_text = column_type is str
    if condition.op == "contains" and not is_text:
        raise UserError(f"filter: contains goes with text only, and {column} is a number")
    if is_text != isinstance(value, str):
        wanted = "quoted text" if is_text else "a number, true or false"
        raise UserError(f"filter: {column} compares with {wanted}, not with {value!r}")
    if isinstance(value, str):
        return value
    if column_type is bool:
        if value not in (0, 1):
            raise UserError(f"filter: {column} compares with true and false, not with {value!r}")
        return bool(value)
    return float(value) if column_type is float else value + 0


def _python_type(kind: pa.DataType) -> type:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return str
    if pa.types.is_boolean(kind):
        return bool
    if pa.types.is_integer(kind):
        return int
    return float if pa.types.is_floating(kind) else object


class _Parser:
    """Recursive descent over the tokens of one filter."""

    def __init__(self, text: str) -> None:
        self._depth = self._conditions = 0
        self._tokens: list[tuple[str, str]] = []
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None:
                raise UserError(f"filter: cannot read {text[position:].strip()[:20]!r}")
            self._tokens.append((str(match.lastgroup), match.group(str(match.lastgroup))))
            position = match.end()
        self._next = 0

    def parse(self) -> Filter:
        tree = self._junction("or")
        if self._next < len(self._tokens):
            raise UserError(f"filter: did not expect {self._tokens[self._next][1]!r}")
        return tree

    def _junction(self, kind: Literal["or", "and"]) -> Filter:
        parts = [self._part(kind)]
        while self._take_word(kind):
            parts.append(self._part(kind))
        return parts[0] if len(parts) == 1 else Junction(kind, tuple(parts))

    def _part(self, kind: Literal["or", "and"]) -> Filter:
        if kind == "or":
            return self._junction("and")
        if self._take_word("not"):
            self._enter()
            negated = self._part("and")
            self._depth -= 1
            return Junction("not", (negated,))
        if self._peek() == ("paren", "("):
            self._next += 1
            self._enter()
            tree = self._junction("or")
            self._take("paren", "a closing parenthesis")
            self._depth -= 1
            return tree
        return self._condition()

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > DEEPEST:
            raise UserError(
                f"filter: more than {DEEPEST} parentheses and `not` in one another; use fewer"
            )

    def _condition(self) -> Filter:
        self._conditions += 1
        if self._conditions > MOST_CONDITIONS:
            raise UserError(f"filter: more than {MOST_CONDITIONS} conditions; use fewer")
        column = self._take("word", "a column")
        if self._take_word("contains"):
            op = "contains"
        else:
            op = self._take("op", f"an operator after {column}").replace("==", "=")
        return Condition(column, op, self._literal(column))

    def _literal(self, column: str) -> Value:
        kind, token = self._peek()
        self._next += 1
        if kind == "number":
            return _number(token)
        if kind == "text":
            return _text(token)
        if kind == "word" and token.lower() in _WORDS:
            return _WORDS[token.lower()]
        if kind == "word":
            raise UserError(f"filter: text must be quoted: {column} ... '{token}'")
        raise UserError(f"filter: expected a value for {column}")

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._next] if self._next < len(self._tokens) else ("end", "")

    def _take(self, kind: str, wanted: str) -> str:
        found, token = self._peek()
        if found != kind:
            raise UserError(f"filter: expected {wanted}" + (f", got {token!r}" if token else ""))
        self._next += 1
        return token

    def _take_word(self, word: str) -> bool:
        kind, token = self._peek()
        if kind == "word" and token.lower() == word:
            self._next += 1
            return True
        return False


def _number(token: str) -> int | float:
    # As a float first: a whole number of thousands of digits is none that Python would read.
    size = float(token)
    if not math.isfinite(size):
        raise UserError(f"filter: the number {token[:20]} is too large")
    if re.search(r"[.eE]", token):
        return size
    if abs(size) > 2 * _LARGEST or abs(int(token)) > _LARGEST:
        raise UserError(f"filter: {token[:20]} is beyond whole numbers of 64 bits; write {size:g}")
    return int(token)


def _text(token: str) -> str:
    text = token[1:-1].replace(token[0] * 2, token[0])
    if not text.isprintable() and ("\0" in text or not _is_unicode(text)):
        raise UserError("filter: text holds a character that no column can have")
    return text


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

"""`instruction`: the share of an instruction's constraints that a response meets.

Checks of length, words and form (`{"type": "length", "unit": "words", "max": 100}`) stand in the
options, for every prompt, or in a column of the row. They count as a reader counts: words by
letters and digits, sentences by their ends, paragraphs by empty lines. The score is the share that
hold; a response is correct when all do.
"""

import json
import re
import unicodedata
from typing import Annotated, Any, Literal

import jsonschema
from pydantic import Field, TypeAdapter, ValidationError, model_validator

from headrace.config.sections.base import StrictModel
from headrace.errors import refused_key
from headrace.protocol.messages.control import ScoreItem
from rewards.answers.row import column
from rewards.functions.results import Verdict
from rewards.verifier import Verifier

_WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")
_SENTENCE_END = re.compile(
    r"(?<![.!?\u3002\uff01\uff1f])[.!?\u3002\uff01\uff1f]+[\"'\u201d\u2019)]*(?=\s|$)"
    r"|[\u3002\uff01\uff1f]"
)
_BULLET = re.compile(r"^[ \t]*(?:[-*+\u2022]|[0-9]+[.)])[ \t]+\S", re.MULTILINE)
_FENCE = re.compile(r"```[a-zA-Z]*[^\S\n]*\n(.*)\n[^\S\n]*```", re.DOTALL)
_SCRIPTS = {"han": ("CJK",), "japanese": ("HIRAGANA", "KATAKANA", "CJK")}
"""Beginnings of the names of letters in Unicode, where they are not the name of the script."""


class _CountBounds(StrictModel):
    min: int | None = Field(default=None, ge=0)
    """At least this many."""

    max: int | None = Field(default=None, ge=0)
    """At most this many."""

    def hold(self, count: int) -> bool:
        """Return whether a count is within the bounds; without any, whether there is one."""
        least = self.min or int(self.min is None and self.max is None)
        return count >= least and (self.max is None or count <= self.max)


class Length(_CountBounds):
    """Length of the text."""

    type: Literal["length"]
    unit: Literal["words", "sentences", "paragraphs", "lines", "characters"] = "words"
    """Counted unit; lines and paragraphs are counted without empty ones."""

    @model_validator(mode="after")
    def _bounded(self) -> "Length":
        if self.min is None and self.max is None:
            raise ValueError("a length needs min or max")
        return self

    def passes(self, text: str) -> bool:
        """Return whether the text's length is within the bounds."""
        return self.hold(_count(text, self.unit))


class Keywords(_CountBounds):
    """Words that have to stand in the text."""

    type: Literal["keywords"]
    words: Annotated[tuple[str, ...], Field(min_length=1)]
    """Each has to stand in it as often as `min` and `max` say; without them, once or more."""

    ignore_case: bool = True
    """Capital and small letters are the same."""

    def passes(self, text: str) -> bool:
        """Return whether each word stands in the text often enough."""
        counts = (_occurrences(text, word, self.ignore_case) for word in self.words)
        return all(map(self.hold, counts))


class ForbiddenWords(StrictModel):
    """Words that may not stand in the text."""

    type: Literal["forbidden"]
    words: Annotated[tuple[str, ...], Field(min_length=1)]
    ignore_case: bool = True
    """Capital and small letters are the same."""

    def passes(self, text: str) -> bool:
        """Return whether none of the words stands in the text."""
        return not any(_occurrences(text, word, self.ignore_case) for word in self.words)


class Json(StrictModel):
    """The text is JSON."""

    type: Literal["json"]
    json_schema: dict[str, Any] | None = None
    """JSON Schema that it has to fit. None: any JSON."""

    fenced: bool = True
    """It may stand in a block of code."""

    @model_validator(mode="after")
    def _checked(self) -> "Json":
        if self.json_schema is not None:
            try:
                jsonschema.validators.validator_for(self.json_schema).check_schema(self.json_schema)
            except jsonschema.SchemaError as error:
                raise ValueError(f"json_schema is none: {error.message}") from error
        return self

    def passes(self, text: str) -> bool:
        """Return whether the text is JSON that fits the schema."""
        fence = _FENCE.fullmatch(text.strip()) if self.fenced else None
        try:
            # JSON has no NaN and no Infinity, of which int is a ValueError.
            value = json.loads(fence[1] if fence else text, parse_constant=int)
            if self.json_schema is None:
                return True
            validator = jsonschema.validators.validator_for(self.json_schema)(self.json_schema)
            return bool(validator.is_valid(value))
        except (ValueError, RecursionError, ArithmeticError):
            return False


class Edge(StrictModel):
    """Beginning or end of the text, blanks apart."""

    type: Literal["starts_with", "ends_with"]
    text: str = Field(min_length=1)
    ignore_case: bool = False
    """Capital and small letters are the same."""

    def passes(self, text: str) -> bool:
        """Return whether the text begins or ends with the wanted one."""
        text, edge = text.strip(), self.text.strip()
        if self.ignore_case:
            text, edge = text.casefold(), edge.casefold()
        return text.startswith(edge) if self.type == "starts_with" else text.endswith(edge)


class Bullets(_CountBounds):
    """Number of points in the text's lists (`- point`, `* point`, `1. point`)."""

    type: Literal["bullets"]

    def passes(self, text: str) -> bool:
        """Return whether the number is within the bounds; without bounds, at least one."""
        return self.hold(len(_BULLET.findall(text)))


class Script(StrictModel):
    """The script that the text is written in. Languages of one script are not told apart."""

    type: Literal["script"]
    script: Literal[
        "latin", "cyrillic", "greek", "arabic", "hebrew", "devanagari", "thai", "hangul", "han",
        "japanese",
    ]  # fmt: skip
    share: float = Field(default=0.9, gt=0, le=1)
    """Least share of its letters."""

    def passes(self, text: str) -> bool:
        """Return whether enough letters are of the script; never without letters."""
        letters = [char for char in text if char.isalpha()]
        names = _SCRIPTS.get(self.script, (self.script.upper(),))
        own = sum(unicodedata.name(char, "").startswith(names) for char in letters)
        return bool(letters) and own >= self.share * len(letters)


class Case(StrictModel):
    """All letters are capital, or small."""

    type: Literal["case"]
    case: Literal["upper", "lower"]

    def passes(self, text: str) -> bool:
        """Return whether all letters are of the case; never without letters."""
        return text.isupper() if self.case == "upper" else text.islower()


Check = Annotated[
    Length | Keywords | ForbiddenWords | Json | Edge | Bullets | Script | Case,
    Field(discriminator="type"),
]
_checks = TypeAdapter(tuple[Check, ...])


def read_checks(found: object) -> tuple[Check, ...]:
    """Read a row's checks, a list of objects or its JSON; else ValueError of one line."""
    if isinstance(found, str):
        found = json.loads(found)
    try:
        checks = _checks.validate_python(found)
    except ValidationError as error:
        raise ValueError(f"checks: {refused_key(error)}") from error
    if not checks:
        raise ValueError("checks: the list is empty")
    return checks


def _count(text: str, unit: str) -> int:
    match unit:
        case "words":
            # Marks on letters (vowels of Hindi, accents) are no letters, and part no word.
            bare = (char for char in text if not unicodedata.category(char).startswith("M"))
            return len(_WORD.findall("".join(bare)))
        case "sentences":
            ends = list(_SENTENCE_END.finditer(text))
            rest = text[ends[-1].end() :] if ends else text
            return len(ends) + bool(_WORD.search(rest))
        case "paragraphs":
            return len([part for part in re.split(r"\n\s*\n", text) if part.strip()])
        case "lines":
            return len([line for line in text.splitlines() if line.strip()])
        case _:
            return len(text.strip())


def _occurrences(text: str, word: str, ignore_case: bool) -> int:
    """Count a word in a text, as a word where it begins and ends with letters."""
    before = r"(?<!\w)" if re.match(r"\w", word) else ""
    after = r"(?!\w)" if re.search(r"\w$", word) else ""
    flags = re.IGNORECASE if ignore_case else re.RegexFlag(0)
    return len(re.findall(before + re.escape(word) + after, text, flags))


class Options(StrictModel):
    """Place of the checks."""

    checks: tuple[Check, ...] = ()
    """Checks of every response, such as `{ type = "length", unit = "words", max = 100 }`. Types:
    length, keywords, forbidden, json, starts_with, ends_with, bullets, script, case."""

    checks_column: str | None = None
    """Column with a row's checks, as objects or JSON. None: `checks` if the option is empty."""


def build(options: Options) -> Verifier:
    """The verifier. Parts: every check by its number and type (`1_length`)."""
    name = options.checks_column or (None if options.checks else "checks")

    def judge(item: ScoreItem) -> Verdict:
        checks = (*options.checks, *(read_checks(column(item, name)) if name else ()))
        # Nothing said follows no instruction.
        held = [bool(item.text.strip()) and check.passes(item.text) for check in checks]
        parts = {
            f"{number}_{check.type}": float(holds)
            for number, (check, holds) in enumerate(zip(checks, held, strict=True), start=1)
        }
        right = all(held)
        return Verdict(sum(held) / len(held), right, {"correct": float(right), **parts})

    return Verifier(judge, (name,) if name else ())

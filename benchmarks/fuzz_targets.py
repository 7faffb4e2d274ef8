"""What a fuzzer tries: five places where outside data comes in, and what must hold there.

Comes in: chance. Goes out: what became of an input (a word for the count). Promise of a target: an
input is taken, or refused by the one kind of error that its place is allowed; anything else that
happens is a finding, and so is a promise of the target that does not hold.
"""

import tempfile
from pathlib import Path
from random import Random
from typing import Any, Protocol

import msgspec
import pyarrow as pa
import sqlalchemy as sa

from benchmarks.fuzz_values import Grammar, damaged, misspelt
from headrace.config.keys import keys
from headrace.config.load import load_recipe
from headrace.config.run import RunConfig
from headrace.errors import ProtocolError, UserError
from headrace.install import ROOT
from headrace.protocol import messages as m
from headrace.protocol.codec import MAGIC, message_codec
from storage.filters import parse, to_arrow, to_sql


class Target(Protocol):
    """One place. `block`: inputs that go to the same surroundings, so that a finding is repeated by
    beginning with the first of its block."""

    block: int

    def attempt(self, random: Random) -> str:
        """Make an input and give it to the place; what became of it."""

    def close(self) -> None:
        """Look at what is left behind, and clear up."""


def require(holds: bool, text: str) -> None:
    """A promise of a target."""
    if not holds:
        raise AssertionError(text)


def one_line(error: UserError) -> None:
    """A user's mistake is told in one line."""
    text = str(error)
    require(bool(text) and "\n" not in text, f"not one line: {text[:200]!r}")


KINDS = tuple(kind for kind in vars(m).values() if isinstance(kind, type)
              and issubclass(kind, m.Message) and kind is not m.Message)  # fmt: skip


def message_frames(random: Random, kinds: tuple[type[m.Message], ...] = KINDS) -> list[bytes]:
    """Frames of a message by the grammar."""
    raw = random.randbytes(8 * random.randrange(9))
    body = Grammar(random, len(raw)).struct(random.choice(kinds))
    return [MAGIC + msgspec.msgpack.encode(body), raw]


class CodecTarget:
    """Frames to a message: ProtocolError, or a message that goes on the wire and comes back as it
    was."""

    block = 1

    def __init__(self) -> None:
        self._codec = message_codec(max_bytes=1 << 20)

    def attempt(self, random: Random) -> str:
        """See Target."""
        frames = message_frames(random)
        match random.randrange(6):
            case 0:
                frames = [damaged(random, frame) for frame in frames]
            case 1:
                frames[0] = MAGIC + damaged(random, frames[0][len(MAGIC) :])
            case 2:
                frames = [
                    random.randbytes(random.randrange(60))
                    for _ in range(random.choice((0, 1, 2, 2, 3)))
                ]
        try:
            message = self._codec.decode(frames)
        except ProtocolError as error:
            require(len(str(error)) < 2000, "a reason of more than 2,000 characters")
            return "refused"
        again = self._codec.encode(message)
        require(self._codec.encode(self._codec.decode(again)) == again, "does not come back")
        return "taken"

    def close(self) -> None:
        """Nothing is left behind."""


_COLUMNS = ("id", "reward", "status", "good", "raw", "nothing", "or", "Reward")
_NUMBERS = ("0", "1", "-1", "1.5", ".5", "1.", "1e23", "9007199254740993", "true", "FALSE", "null")
_WORDS = ("'finished'", '"it\'s"', "''", "'100%'", "'_'", "'\\'", "null")
_OPERATORS = ("=", "==", "!=", "<", "<=", ">", ">=", "contains", "is", "")
_LITERALS = (
    "0", "1", "-1", "1.5", "0.1", ".5", "1.", "1e23", "1e999", "100000000000000000000000",
    "9223372036854775807", "-9223372036854775808", "9223372036854775808", "9007199254740993",
    "9" * 400, "1_000", "0x10", "inf", "nan", "-", "true", "FALSE", "null", "word", "'finished'",
    '"it\'s"', "''", "'100%'", "'_'", "'\\'", "'a\0b'", "'open",
)  # fmt: skip


class FilterTarget:
    """The filter language: UserError of one line, or a filter that means the same to SQL and to
    Arrow."""

    block = 1

    def __init__(self) -> None:
        kinds = {"id": sa.Integer, "reward": sa.Float, "status": sa.Text, "good": sa.Boolean,
                 "raw": sa.LargeBinary}  # fmt: skip
        columns: list[sa.Column[Any]] = [sa.Column(name, kind) for name, kind in kinds.items()]
        self._table = sa.Table("rows", sa.MetaData(), *columns)
        rewards = (0.5, None, 1.0, -2.0, 1e23, 0.0)
        states = ("finished", None, "it's 100%", "", "_", "\\")
        rows = [
            {
                "id": number,
                "reward": reward,
                "status": status,
                "good": (True, False, None)[number % 3],
            }
            for number, (reward, status) in enumerate(zip(rewards, states, strict=True))
        ]
        self._connection = sa.create_engine("sqlite://").connect()
        self._table.create(self._connection)
        self._connection.execute(sa.insert(self._table), rows)
        stored = (pa.int64(), pa.float64(), pa.string(), pa.bool_(), pa.binary())
        schema = pa.schema(list(zip(kinds, stored, strict=True)))
        self._rows = pa.Table.from_pylist(rows, schema)

    def attempt(self, random: Random) -> str:
        """See Target."""
        text = self._text(random, 0)
        if random.random() < 0.3:
            text = misspelt(random, text, (*_LITERALS, *_COLUMNS, "(", ")", "not ", " and "))
        columns = self._table.c
        try:
            tree = parse(text)
            condition, expression = to_sql(tree, dict(columns)), to_arrow(tree, self._rows.schema)
        except UserError as error:
            one_line(error)
            return "refused"
        found = self._connection.execute(sa.select(columns.id).where(condition)).scalars()
        expected = self._rows.filter(expression).column("id").to_pylist()
        require(sorted(found) == expected, f"SQL and Arrow differ: {text[:200]!r}")
        return "taken"

    def _text(self, random: Random, depth: int) -> str:
        kind = random.randrange(10 if depth < 16 else 4)
        if kind < 5 and random.random() < 0.9:
            return self._condition(random)
        if kind < 5:
            parts = (random.choice(_COLUMNS), random.choice(_OPERATORS), random.choice(_LITERALS))
            return (
                random.choice((" ", "")).join(parts) if random.random() < 0.1 else " ".join(parts)
            )
        if kind == 5:
            return f"not {self._text(random, depth + 1)}"
        if kind == 6:
            return f"({self._text(random, depth + 1)})"
        word = random.choice((" and ", " or ", " AND "))
        count = random.choice((2, 2, 2, 3, 3, 8)) if depth else random.choice((2, 3, 40, 260))
        return word.join(self._text(random, depth + 3) for _ in range(count))

    def _condition(self, random: Random) -> str:
        """One that is nearly always right."""
        column = random.choice(("id", "reward", "status", "good"))
        literal = random.choice(_WORDS if column == "status" else _NUMBERS)
        operators: tuple[str, ...] = ("=", "!=") if literal == "null" else _OPERATORS[:7]
        if column == "status" and literal != "null":
            operators += ("contains",)
        return f"{column} {random.choice(operators)} {literal}"

    def close(self) -> None:
        """See Target."""
        self._connection.close()


_VALUES = (
    "0", "1", "-1", "2", "0.5", "1e23", "1e400", "nan", "inf", "99999999999999999999999", "true",
    '"null"', '""', '"x"', '"/"', '"\\u0000"', '"../.."', '"\U0001f40d"', "[]", "[1, 2]", "{}",
    '{kind = "exact"}', "{a = {b = 1}}", "[[1]]", "1979-05-27", "07:32:00", "0x7f", "null",
    '"egae"',
)  # fmt: skip


class ConfigTarget:
    """A recipe and overrides: UserError of one line, or a configuration that is written down and
    read back as it is."""

    block = 1

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        recipes = sorted((ROOT / "recipes").glob("*.toml"))
        self._recipes = [path.read_text(encoding="utf-8") for path in recipes]
        self._keys = sorted({key.name for key in keys(RunConfig)})

    def attempt(self, random: Random) -> str:
        """See Target."""
        text = random.choice(self._recipes)
        data = text.encode()
        match random.randrange(4):
            case 0:
                data = self._with_lines(random, text).encode()
            case 1:
                data = misspelt(random, text, (*_VALUES, "[", "]]", "[[a]]\n", "a.b = 1\n")).encode(
                    errors="ignore"
                )
            case 2:
                data = damaged(random, data)
        path = Path(self._folder.name) / "recipe.toml"
        path.write_bytes(data)
        overrides = [self._override(random) for _ in range(random.randrange(3))]
        try:
            config = load_recipe(path, overrides)
        except UserError as error:
            one_line(error)
            return "refused"
        again = RunConfig.model_validate_json(config.model_dump_json())
        require(again == config, "the configuration does not come back from JSON")
        return "taken"

    def _with_lines(self, random: Random, text: str) -> str:
        lines = text.splitlines()
        for _ in range(random.randrange(1, 4)):
            at = random.randrange(len(lines))
            key, equals, _ = lines[at].partition("=")
            match random.randrange(4):
                case 0 if equals:
                    lines[at] = f"{key}= {random.choice(_VALUES)}"
                case 1:
                    del lines[at]
                case 2:
                    lines.insert(at, f"{random.choice(self._keys)} = {random.choice(_VALUES)}")
                case 3:
                    lines.insert(at, lines[random.randrange(len(lines))])
            lines = lines or [""]
        return "\n".join(lines)

    def _override(self, random: Random) -> str:
        key = random.choice(self._keys).replace("NAME", random.choice(("NAME", "a", "", "b.c")))
        override = f"{key}={random.choice(_VALUES)}"
        return misspelt(random, override, ("=", ".", "\n")) if random.random() < 0.3 else override

    def close(self) -> None:
        """See Target."""
        self._folder.cleanup()

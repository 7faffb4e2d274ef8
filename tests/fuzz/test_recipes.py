"""Recipes and overrides with mistakes: UserError of one line, or a configuration that is written
down and read back as it is."""

import tempfile
from pathlib import Path

from hypothesis import event, given
from hypothesis import strategies as st

from headrace.config.loading.keys import keys
from headrace.config.loading.recipe import load_recipe
from headrace.config.sections.run import RunConfig
from headrace.errors import UserError
from headrace.host.install import ROOT
from tests.fuzz.damage import BYTES, TEXT, damaged, one_line

RECIPES = sorted((ROOT / "recipes").glob("*.toml"))
KEYS = sorted({key.name for key in keys(RunConfig)})
VALUES = (
    "0", "1", "-1", "2", "0.5", "1e23", "1e400", "nan", "inf", "99999999999999999999999", "true",
    '"null"', '""', '"x"', '"/"', '"\\u0000"', '"../.."', '"\U0001f40d"', "[]", "[1, 2]", "{}",
    '{kind = "exact"}', "{a = {b = 1}}", "[[1]]", "1979-05-27", "07:32:00", "0x7f", "null",
    '"egae"',
)  # fmt: skip
VALUE = st.sampled_from(VALUES)
PIECE = st.sampled_from((*VALUES, "[", "]]", "[[a]]\n", "a.b = 1\n", "=", ".", "\n")) | TEXT


@st.composite
def with_other_lines(draw: st.DrawFn, text: str) -> str:
    """One to three lines with another value, left out, said twice, or new."""
    lines = text.splitlines()
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(lines) - 1))
        new = f"{draw(st.sampled_from((*KEYS, lines[at].partition('=')[0])))} = {draw(VALUE)}"
        put = draw(st.sampled_from(([new], [], [lines[at], lines[at]], [new, lines[at]])))
        lines[at : at + 1] = put
        lines = lines or [""]
    return "\n".join(lines)


@st.composite
def overrides(draw: st.DrawFn) -> str:
    key = draw(st.sampled_from(KEYS)).replace("NAME", draw(st.sampled_from(("a", "", "b.c"))))
    override = f"{key}={draw(VALUE)}"
    return draw(st.just(override) | damaged(override, PIECE))


@given(st.data())
def test_a_recipe_is_taken_or_a_mistake_of_one_line(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(RECIPES)).read_text(encoding="utf-8")
    written = data.draw(st.one_of(
        st.just(text.encode()),
        with_other_lines(text).map(str.encode),
        damaged(text, PIECE).map(lambda told: told.encode(errors="ignore")),
        damaged(text.encode(), BYTES),
    ))  # fmt: skip
    told = data.draw(st.lists(overrides(), max_size=2))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recipe.toml"
        path.write_bytes(written)
        try:
            config = load_recipe(path, told)
        except UserError as error:
            event("refused")
            one_line(error)
            assert told or written != text.encode()
            return
    event("taken")
    assert RunConfig.model_validate_json(config.model_dump_json()) == config

"""The page Query: its examples, and what it says of a mistake."""

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from dashboard.components.reading import literal_markdown
from dashboard.views.query import EXAMPLES
from storage import queries


def page(run: str) -> None:
    from dashboard.reads import data
    from dashboard.views import query

    query.render(data.RunData(data.run_line(run)))


@pytest.fixture
def test(run_dir: Path) -> AppTest:
    return AppTest.from_function(page, args=(str(run_dir),), default_timeout=60).run()


def ask(test: AppTest) -> AppTest:
    return test.button[0].click().run()


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_are_answered(test: AppTest, run_dir: Path, example: str) -> None:
    assert not test.dataframe
    ask(test.selectbox[0].select(example).run())
    assert not test.exception
    assert not test.error
    shown = test.dataframe[0].value
    with queries.ask(run_dir, EXAMPLES[example]) as answer:
        assert tuple(shown.columns) == answer.columns
        assert len(shown) == len(list(answer.rows)) > 0


def test_a_question_of_ones_own(test: AppTest) -> None:
    test.text_area[0].set_value("select 1 as a, 2 as a, i from range(2000) t(i)")
    ask(test)
    assert not test.exception
    shown = test.dataframe[0].value
    assert list(shown.columns) == ["a (1)", "a (2)", "i"]
    assert len(shown) == 1000
    assert any("first 1,000 rows" in caption.value for caption in test.caption)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select rewrd from trajectories", '"rewrd" not found'),
        ("drop table tokens", "one SELECT"),
        ("select '![b](http://e.test/b)'::int", "![b]"),
    ],
)
def test_a_mistake_is_one_line(test: AppTest, query: str, message: str) -> None:
    test.text_area[0].set_value(query)
    ask(test)
    assert not test.exception
    # What an answer says stays a text: no browser fetches its images.
    shown = test.error[0].value
    assert literal_markdown(message) in shown
    assert "![b](http" not in shown
    assert not test.dataframe

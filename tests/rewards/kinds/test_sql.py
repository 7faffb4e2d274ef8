from pathlib import Path

import pytest

from rewards.kinds.sql import is_ordered, query_of
from tests.rewards.kinds.rows import judged, verifier

SCHEMA = """
CREATE TABLE city (name TEXT, people INTEGER, area REAL);
INSERT INTO city VALUES ('Lima', 10, 2.5), ('Oslo', 1, 0.5), ('Bern', 1, 0.1), ('Rome', 3, NULL);
"""
GOLD = "SELECT name FROM city WHERE people < 5"
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


def correct(text: str, answer: str = GOLD, **options: object) -> bool:
    return judged(verifier("sql", **options), text, answer, schema=SCHEMA).correct


@pytest.mark.parametrize(
    "text",
    [
        "SELECT name FROM city WHERE people < 5;",
        "So:\n```sql\nSELECT name FROM city WHERE people <= 3\n```\nThat is all.",
        "```\nSELECT 1\n```\nno, better\n```SQL\nselect name from city where people in (1, 3)\n```",
        "SELECT name FROM city WHERE people < 5 ORDER BY name DESC",
        "WITH small AS (SELECT * FROM city WHERE people < 5) SELECT name FROM small",
        "```sql\nSELECT name FROM city WHERE people < 5\n```\nExpected output:\n```\nOslo\n```",
        "With this query we get the names:\n\nSELECT name FROM city WHERE people < 5;",
        "```sqlite3\r\nSELECT name FROM city WHERE people < 5\r\n```",
        "The query:\nSELECT c.name\nFROM city c\nWHERE c.people < 5; it takes the small ones",
    ],
)
def test_queries_with_the_same_rows(text: str) -> None:
    assert correct(text)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT name FROM city",
        "SELECT DISTINCT people FROM city WHERE people < 5",
        "SELECT name, people FROM city WHERE people < 5",
        "SELECT upper(name) FROM city WHERE people < 5",
        "SELECT nam FROM city",
        "I do not know",
        "",
        "SELECT name FROM city WHERE people < 5; SELECT 1",
    ],
)
def test_other_rows_and_no_rows(text: str) -> None:
    assert correct(text) == text.startswith("SELECT name FROM city WHERE people < 5; ")


def test_rows_count_as_often_as_they_come() -> None:
    assert correct("SELECT people FROM city", "SELECT people FROM city ORDER BY 1", order="never")
    assert not correct("SELECT DISTINCT people FROM city", "SELECT people FROM city")


def test_order_counts_where_the_right_query_orders() -> None:
    ordered = "SELECT name FROM city ORDER BY name"
    assert correct("SELECT name FROM city ORDER BY 1", ordered)
    assert not correct("SELECT name FROM city ORDER BY name DESC", ordered)
    assert correct("SELECT name FROM city ORDER BY name DESC", ordered, order="never")
    assert not correct("SELECT name FROM city ORDER BY 1", "SELECT name FROM city", order="always")
    assert is_ordered("select a from (select 1 as a) order  by a")
    assert not is_ordered("SELECT * FROM (SELECT a FROM b ORDER BY a LIMIT 1)")
    assert not is_ordered("SELECT ' order by ' -- order by\nFROM a")


def test_sums_of_floats_do_not_depend_on_the_order() -> None:
    assert correct("SELECT 0.1 + 0.2 + 0.3", "SELECT 0.3 + 0.2 + 0.1")
    assert correct("SELECT sum(area) FROM city", "SELECT 3.1")
    assert not correct("SELECT sum(area) FROM city", "SELECT 3.2")


@pytest.mark.parametrize(
    "query",
    [
        "ATTACH 'FILE' AS other",
        "VACUUM INTO 'FILE'",
        "PRAGMA database_list",
        "SELECT * FROM pragma_database_list",
        "DROP TABLE city",
        "DELETE FROM city",
        "INSERT INTO city VALUES ('X', 1, 1)",
        "CREATE TABLE x AS SELECT 1",
        "CREATE TEMP TABLE x (a)",
        "SELECT load_extension('FILE')",
        "SELECT writefile('FILE', 'x')",
        "BEGIN",
    ],
)
def test_a_response_may_read_the_tables_and_nothing_else(query: str, tmp_path: Path) -> None:
    place = tmp_path / "file"
    verdict = judged(
        verifier("sql"), f"```sql\n{query.replace('FILE', str(place))}\n```", GOLD, schema=SCHEMA
    )
    assert (verdict.correct, verdict.parts["ran"]) == (False, 0.0)
    assert not place.exists()
    # The next response finds the database as the script built it.
    assert correct(GOLD)


@pytest.mark.parametrize(
    "query",
    [
        ENDLESS,
        "SELECT zeroblob(1000000000)",
        "SELECT a.name FROM city a, city b, city c, city d, city e, city f, city g, city h",
        "SELECT " + "(" * 5000 + "1" + ")" * 5000,
        "SELECT '" + "x" * 200_000 + "'",
    ],
)
def test_queries_without_end_are_wrong(query: str) -> None:
    verify = verifier("sql", max_steps=200_000)
    verdict = judged(verify, query, GOLD, schema=SCHEMA)
    assert (verdict.correct, verdict.parts["ran"]) == (False, 0.0)


def test_a_query_without_room_is_wrong() -> None:
    query = (
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 100000), d AS "
        "MATERIALIZED (SELECT x, zeroblob(1000000) b FROM c) SELECT count(*) FROM d a "
        "JOIN d b ON a.x = b.x + 1"
    )
    assert not judged(verifier("sql"), query, GOLD, schema=SCHEMA).correct


@pytest.mark.parametrize(
    ("schema", "answer", "error"),
    [
        ("CREATE TABLE", GOLD, "the row's script fails: incomplete input"),
        ("ATTACH 'x' AS y", GOLD, "the row's script fails: "),
        (SCHEMA, "SELECT x FROM y", "the right query fails: no such table: y"),
        (SCHEMA, " ", "the right answer is empty"),
        (SCHEMA, ENDLESS, "the right query fails: interrupted"),
    ],
)
def test_rows_that_cannot_be_judged(schema: str, answer: str, error: str) -> None:
    with pytest.raises(ValueError, match=error) as raised:
        judged(verifier("sql", max_steps=200_000), GOLD, answer, schema=schema)
    assert "\n" not in str(raised.value)


def test_the_query_of_a_text() -> None:
    assert query_of("Look:\n  SELECT ';' AS a; and so on") == "SELECT ';' AS a"
    assert query_of("```sql\nSELECT 1;\n```") == "SELECT 1"

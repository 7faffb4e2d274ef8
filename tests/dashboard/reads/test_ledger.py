"""The ledger on the page: every number, and a balance that is checked."""

from typing import Any

from dashboard.reads.ledger import ledger_html, ledger_parts

TOKENS: dict[str, Any] = {
    "generated": 1000,
    "trained_policy": 700,
    "ready": 120,
    "in_flight": 80,
    "dropped": {"stale": 60, "boundary_mask": 40, "filtered": 0},
    "abandoned": 30,
    "evaluation": 0,
    "discarded_at_hold": 0,
    "lost": 5,
}


def test_parts_are_the_right_side_of_the_balance() -> None:
    parts = ledger_parts(TOKENS)
    assert parts == {"trained_policy": 700, "ready": 120, "in_flight": 80, "dropped": 100}


def test_a_balance_that_holds_says_so() -> None:
    html = ledger_html(TOKENS)
    assert "adds up to the token" in html
    assert "dropped: stale 60, boundary mask 40<br>" in html
    assert "30 trained on an abandoned lineage, 5 lost on the way" in html
    assert [f"flex:{n}" in html for n in (700, 120, 80, 100)] == [True] * 4


def test_a_balance_that_breaks_is_seen() -> None:
    html = ledger_html(TOKENS | {"generated": 1003})
    assert "off by 3 tokens" in html
    assert "adds up" not in html


def test_an_empty_ledger_balances() -> None:
    html = ledger_html(
        {"generated": 0, "trained_policy": 0, "ready": 0, "in_flight": 0, "dropped": {}}
    )
    assert "adds up to the token" in html
    assert "nothing was dropped" in html

"""The token ledger as a balance that visibly adds up.

In: the token counts of a run's summary. Out: HTML. Every number is that of the store, to the token.
The sum is computed here and compared, so that a broken balance is visible.
"""

from html import escape
from typing import Any

from dashboard.formatting import count, share
from dashboard.palette import ACCOUNTS

_NAMES = {
    "trained_policy": "trained",
    "ready": "ready",
    "in_flight": "in flight",
    "dropped": "dropped",
}


def ledger_parts(tokens: dict[str, Any]) -> dict[str, int]:
    """The right side of the balance."""
    return {name: tokens[name] for name in _NAMES} | {"dropped": sum(tokens["dropped"].values())}


def ledger_html(tokens: dict[str, Any]) -> str:
    """generated = trained + ready + in flight + dropped, as numbers and as one bar."""
    parts = ledger_parts(tokens)
    generated, total = tokens["generated"], sum(parts.values())
    terms = '<div class="op">+</div>'.join(
        f'<div><b>{count(value)}</b><span><i class="hr-dot" style="background:'
        f'{ACCOUNTS[name]}"></i>{_NAMES[name]}</span></div>'
        for name, value in parts.items()
    )
    bar = "".join(
        f'<i style="flex:{value};background:{ACCOUNTS[name]}" title="{_NAMES[name]}: '
        f'{count(value)} tokens, {share(value / total)}"></i>'
        for name, value in parts.items()
        if value
    )
    return (
        f'<div class="hr-sum"><div><b>{count(generated)}</b><span>generated</span></div>'
        f'<div class="op">=</div>{terms}</div><div class="hr-bar">{bar}</div>'
        f"{_verdict(generated, total)}"
        f'<div class="hr-soft">{_reasons(tokens["dropped"])}{_outside(tokens)}</div>'
    )


def _verdict(generated: int, total: int) -> str:
    if generated == total:
        return '<span class="hr-ok">\u2713 adds up to the token</span>'
    off = count(abs(generated - total))
    return f'<span class="hr-bad">! off by {off} tokens: this is a bug worth reporting</span>'


def _reasons(dropped: dict[str, int]) -> str:
    reasons = [
        f"{escape(name.replace('_', ' '))} {count(n)}"
        for name, n in sorted(dropped.items(), key=lambda item: -item[1])
        if n
    ]
    return f"dropped: {', '.join(reasons)}" if reasons else "nothing was dropped"


def _outside(tokens: dict[str, Any]) -> str:
    """Counters that are not part of the balance."""
    names = {
        "abandoned": "trained on an abandoned lineage",
        "evaluation": "of evaluations",
        "inserted": "inserted by templates, tools or the environment",
        "discarded_at_hold": "thrown away by generators at a hold",
        "lost": "lost on the way",
    }
    found = [f"{count(tokens[key])} {text}" for key, text in names.items() if tokens.get(key)]
    return f"<br>outside the balance: {', '.join(found)}" if found else ""

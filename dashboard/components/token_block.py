"""The tokens of an answer on the page: a component of our own, served from here.

In: `token_facts.answer_data`. Out: an element whose tokens are chosen by click, touch or keyboard.
Its JavaScript gets the response as data and sets it as text.
"""

from pathlib import Path
from typing import Any

import streamlit as st

_STATIC = Path(__file__).parents[1] / "static"
_BLOCK = st.components.v2.component(
    "headrace_tokens",
    html='<div class="hr-answer"></div>',
    css=(_STATIC / "tokens.css").read_text(encoding="utf-8"),
    js=(_STATIC / "tokens.js").read_text(encoding="utf-8"),
    isolate_styles=False,
)


def token_block(data: dict[str, Any], key: str) -> None:
    """Draw it; `key` is the element's own."""
    _BLOCK(data=data, key=key)

"""Token diagnostics of the learner: one list for wire, store, export and page.

Adding a figure is one line in `TOKEN_COLUMNS` and one array from the learner.
"""

from typing import Literal, NamedTuple

import msgspec

from headrace.protocol import fields
from headrace.protocol.token_spans import Float32


class TokenColumn(NamedTuple):
    """A figure of each token. `singular` names it in tables with one row per token; `scale` is its
    colour scale on a page: from low to high, or around 0."""

    name: str
    singular: str
    unit: str
    scale: Literal["sequential", "diverging"]
    meaning: str


TOKEN_COLUMNS = (
    TokenColumn("learner_logprobs", "learner_logprob", "nats", "sequential",
                "logprob under the learner's weights when the update began"),
    TokenColumn("values", "value", "reward", "diverging",
                "what the value model expected before the token, when the update began"),
    TokenColumn("advantages", "advantage", "reward", "diverging",
                "how much better the token was than expected, as the policy's loss read it"),
    TokenColumn("returns", "return", "reward", "diverging",
                "discounted shaped reward from the token to the end; known in last windows only"),
)  # fmt: skip
COLUMN_NAMES = tuple(column.name for column in TOKEN_COLUMNS)
REPORT_BYTES, WINDOW_BYTES = 64 << 10, 512
"""More than an update's report takes besides diagnostics, and a window's besides their arrays."""


class TokenDiagnostics(msgspec.Struct, frozen=True, kw_only=True):
    """The learner's figures of one window: `columns` has an array for each name of `TOKEN_COLUMNS`,
    one float32 for each position from `start` on, NaN where there is no figure. `lam` is the lambda
    of the window's advantages."""

    window_id: fields.WindowId
    trajectory_id: fields.Count
    start: fields.Position
    lam: float
    columns: dict[str, Float32]

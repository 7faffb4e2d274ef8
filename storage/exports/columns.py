"""The columns of exports: their names, types and meanings.

In: nothing. Out: Arrow fields whose metadata say what a column means. Text of which a run has few
different values, or which many rows share, is a dictionary column. Promise: a column of one name
means the same in every kind of export.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.errors import UserError
from headrace.protocol.messages.diagnostics import TOKEN_COLUMNS
from storage.database.filters import check_column
from storage.database.trajectory_rows import COLUMNS

WORD = pa.dictionary(pa.int32(), pa.string())
"""Text that many rows share."""
_SECONDS = "seconds since the epoch"

_TRAJECTORY = {
    "run_id": "id of the run",
    "trajectory_id": "id of the response in its run",
    "group_id": "id of the group: the responses to one issue of a prompt",
    "prompt_id": "id of the prompt, from the dataset's row",
    "domain": "that of a mixture which the prompt is from, else empty",
    "attempt": "number of the response in its group, from 0",
    "purpose": "train, eval or along",
    "status": "issued, running, finished, truncated, aborted or failed",
    "finish": "how generation ended: stop or length",
    "length": "response tokens, whoever wrote them",
    "sampled": "response tokens that the policy sampled",
    "inserted": "response tokens that others wrote",
    "surprise": "mean negative logprob of the sampled tokens, in nats",
    "reward": "the outcome's reward",
    "correct": "whether the answer is right",
    "reward_source": "which source of rewards scored the response",
    "reward_status": "ok, timeout, crashed or invalid",
    "reward_seconds": "how long scoring took",
    "reward_error": "why there is no reward",
    "reward_model": "version and digest of the ranker that scored",
    "audit_source": "which second source scored the response",
    "audit_status": "ok, timeout, crashed or invalid, of the second source",
    "audit_reward": "what the second source gave",
    "audit_correct": "whether the second source calls the answer right",
    "gap": "reward less audit_reward",
    "audit_seconds": "how long the second source took",
    "audit_error": "why there is no audited reward",
    "min_version": "oldest weight version that sampled a token",
    "max_version": "newest weight version that sampled a token",
    "generator": "which generator made the last tokens",
    "seed": "seed of the response's sampling",
    "error": "why generation failed",
    "issued_at": f"when the response was first handed out, {_SECONDS}",
    "first_token_at": f"when its first tokens arrived, {_SECONDS}",
    "finished_at": f"when it ended, {_SECONDS}",
    "rewarded_at": f"when its reward arrived, {_SECONDS}",
    "prompt": "the prompt as the policy saw it",
    "answer": "the right answer, as the dataset has it",
    "info": "other columns of the dataset's row, as JSON",
    "reward_parts": "named parts of the reward, as JSON",
    "rewards": "what was earned where, as JSON: [value, position]; empty: all at the last token",
}
_TOKEN = {
    "token_id": ("token_ids", pa.int32(), "id in the vocabulary"),
    "logprob": ("logprobs", pa.float32(), "behaviour logprob in nats; 0 where it was inserted"),
    "version": ("versions", pa.int64(), "weight version that sampled it; -1: inserted"),
    "source": ("sources", WORD, "who wrote it: policy, or who inserted it"),
    "turn": ("turns", pa.int32(), "turn of the conversation, from 0"),
    "mark": ("marks", WORD, "what is special about how it was made: hot"),
    "loss_weight": ("loss_weights", pa.float32(), "times it counts in a loss that it is in"),
    "window_index": ("window_index", pa.int32(), "its window's number; -1: in none yet"),
    "trained_at_update": ("trained_at_update", pa.int64(), "the update of its window; -1: none"),
    "loss_mask": ("loss_mask", pa.uint8(), "1: a committed update had it in its policy loss"),
    "mask_reason": ("mask_reasons", WORD, "why it is in no loss"),
    **{c.singular: (c.name, pa.float32(), f"{c.meaning}, in {c.unit}") for c in TOKEN_COLUMNS},
}
_SHARED = {
    "run_id", "domain", "purpose", "status", "finish", "reward_source", "reward_status",
    "reward_model", "audit_source", "audit_status", "generator",
}  # fmt: skip


class TokenField(NamedTuple):
    """A column of tokens: its names in tables of tokens and of trajectories, type, meaning."""

    singular: str
    plural: str
    type: pa.DataType
    meaning: str


TOKEN_FIELDS = tuple(TokenField(name, *rest) for name, rest in _TOKEN.items())
WINDOW_FIELDS = frozenset(
    {"window_index", "trained_at_update", "loss_mask", "mask_reasons"}
    | {column.name for column in TOKEN_COLUMNS}
)
"""Those (by their plural) that windows say of their tokens."""
JSON_TEXTS = ("reward_parts", "rewards")
"""Scalar columns of a trajectory that the database keeps as JSON."""
SCALARS = ("run_id", *COLUMNS, *JSON_TEXTS)
"""Names of a trajectory's columns that are one value, in order."""
ColumnNames = Sequence[str] | None
"""Names of the chosen columns, in order; None: all of them."""


def type_name(kind: pa.DataType) -> str:
    """A type in words that are the same in every file."""
    if pa.types.is_list(kind):
        return f"list of {type_name(kind.value_type)}"
    if pa.types.is_struct(kind):
        return ", ".join(f"{inner.name} {type_name(inner.type)}" for inner in kind)
    return type_name(kind.value_type) if pa.types.is_dictionary(kind) else str(kind)


def field(name: str, kind: pa.DataType, meaning: str) -> pa.Field:
    """A column with its meaning in its metadata."""
    return pa.field(name, kind, metadata={"meaning": meaning})


def scalar_field(name: str, *, repeated: bool) -> pa.Field:
    """A scalar column of a trajectory; `repeated`: many rows have the same value."""
    kinds = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    kind = kinds[COLUMNS[name].type.python_type] if name in COLUMNS else pa.string()
    if kind == pa.string() and (repeated or name in _SHARED):
        kind = WORD
    return field(name, kind, _TRAJECTORY[name])


def array_of(field: pa.Field, values: Sequence[Any]) -> pa.Array:
    """Values as an array of a column's type; words as a dictionary. Truth values may be 0 and 1."""
    if field.type == WORD:
        return pa.array(values, type=pa.string()).dictionary_encode()
    if field.type == pa.bool_():
        values = [None if value is None else bool(value) for value in values]
    return pa.array(values, type=field.type)


def chosen_fields(fields: Sequence[pa.Field], names: ColumnNames) -> pa.Schema:
    """The named fields, or all; UserError for an unknown name, with the nearest known one."""
    schema = pa.schema(fields)
    if names is None:
        return schema
    asked = list(dict.fromkeys(names))
    for name in asked:
        check_column(name, schema.names, "columns")
    if not asked:
        raise UserError(f"columns: name at least one of {', '.join(schema.names)}")
    return pa.schema([schema.field(name) for name in asked])

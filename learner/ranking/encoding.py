"""Sessions and candidates as tokens of a bidirectional encoder.

In: pairs of texts, a tokenizer. Out: rows of token ids with their segments, and padded batches.
Promises: no row is longer than its limit; the oldest pairs go first, the last one never does; a
text cannot bring in a special token.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headrace.data.sessions import NO_CLICK, Pair
from learner.ranking.sessions import PART_GONE, TERM_GONE

END = "[eos]"
"""The token behind each query and document."""
MARKS = {TERM_GONE: "[term_del]", PART_GONE: "[sent_del]", NO_CLICK: "[empty_d]"}


class TokenRow(NamedTuple):
    """Token ids of a row, and the segment of each: 1 for a candidate."""

    ids: list[int]
    segments: list[int]


class SessionEncoder:
    """Encoder of sessions and candidates. `longest`: maximum tokens of a row."""

    def __init__(self, tokenizer: Any, longest: int) -> None:
        """Add the tokens that sessions need to the tokenizer, where it lacks them."""
        tokenizer.add_special_tokens({"additional_special_tokens": [END, *MARKS.values()]})
        self._tokenizer, self._longest = tokenizer, longest
        self._end = int(tokenizer.convert_tokens_to_ids(END))
        self._marks = {
            mark: int(tokenizer.convert_tokens_to_ids(token)) for mark, token in MARKS.items()
        }
        self._first, self._last = int(tokenizer.cls_token_id), int(tokenizer.sep_token_id)

    def session(self, pairs: Sequence[Pair]) -> TokenRow:
        """[CLS] q1 [eos] d1 [eos] ... [SEP]."""
        ids = [self._first, *self._history(pairs, self._longest - 2), self._last]
        return TokenRow(ids, [0] * len(ids))

    def candidate(self, history: Sequence[Pair], query: str, candidate: str) -> TokenRow:
        """[CLS] history query [eos] [SEP] candidate (segment 1, at most half) [eos] [SEP]."""
        end, room = self._end, self._longest - 3
        query_ids = [*self._text(query)[-(room // 2 - 1) :], end]
        candidate_ids = [*self._text(candidate)[: room // 2 - 1], end]
        kept = self._newest(history, room - len(query_ids) - len(candidate_ids))
        left = [self._first, *kept, *query_ids, self._last]
        right = [*candidate_ids, self._last]
        return TokenRow(left + right, [0] * len(left) + [1] * len(right))

    def _history(self, pairs: Sequence[Pair], room: int) -> list[int]:
        """Return the newest pairs that fit.

        If none does, the last one's longer side is cut: a query from the left, a document from the
        right."""
        kept = self._newest(pairs, room)
        if kept or not pairs:
            return kept
        query, document = (self._text(part) for part in pairs[-1])
        end = self._end
        while len(query) + len(document) + 2 > room:
            if len(query) > len(document):
                query.pop(0)
            else:
                document.pop()
        return [*query, end, *document, end]

    def _newest(self, pairs: Sequence[Pair], room: int) -> list[int]:
        kept: list[int] = []
        for query, document in reversed(pairs):
            end = self._end
            ids = [*self._text(query), end, *self._text(document), end]
            if len(kept) + len(ids) > room:
                break
            kept = ids + kept
        return kept

    def _text(self, text: str) -> list[int]:
        """Return ids of a text in which marks alone are special tokens."""
        ids: list[int] = []
        for is_mark, terms in groupby(text.split(), self._marks.__contains__):
            if is_mark:
                ids += map(self._marks.__getitem__, terms)
                continue
            plain = " ".join(terms)
            encoded = self._tokenizer(plain, add_special_tokens=False, split_special_tokens=True)
            ids += encoded["input_ids"]
        return ids


def pad_rows(rows: Sequence[TokenRow], pad: int) -> dict[str, Tensor]:
    """[B, T] ids, mask and segments of rows, padded to the longest row."""
    longest = max(len(row.ids) for row in rows)
    shape = (len(rows), longest)
    ids, mask, segments = (torch.full(shape, value) for value in (pad, 0, 0))
    for place, row in enumerate(rows):
        size = len(row.ids)
        ids[place, :size] = torch.tensor(row.ids)
        segments[place, :size] = torch.tensor(row.segments)
        mask[place, :size] = 1
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}

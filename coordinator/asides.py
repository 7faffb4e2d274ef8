"""What the value model is told between a prompt and its answers: the anchor they have to beat.

Comes in: the configuration, the policy's tokenizer; rows with the prompt as the policy sees it.
Goes out: token ids, the end token last, or None where there is nothing to tell. Promise: an anchor
is the one that the row's source of rewards compares with; what is longer than an answer may be is
cut there.
"""

from pathlib import Path
from typing import Any

import numpy as np

from headrace.anchors import Anchor, read_anchors
from headrace.config.run import RunConfig
from headrace.protocol.streams import Int32
from tasks.rows import Row


class Asides:
    """See the module's docstring."""

    def __init__(self, config: RunConfig, tokenizer: Any) -> None:
        """UserError where a file of anchors cannot be read."""
        self._config, self._tokenizer = config, tokenizer
        self._files: dict[str, dict[str, Anchor]] = {}
        self._columns: dict[str, str] = {}
        if not config.algorithm.reads_anchors:
            return
        for name, source in config.reward.each().items():
            if source.kind == "pairwise" and (file := source.options.get("anchors")):
                self._files[name] = read_anchors(Path(file).expanduser())
            elif source.kind == "pairwise" and (column := source.options.get("column")):
                self._columns[name] = column

    def of(self, row: Row, prompt: str) -> Int32 | None:
        """What the value model is told of a row, whose prompt the policy sees as `prompt`."""
        if not self._files and not self._columns:
            return None
        text = self._anchor(row, prompt)
        if not text:
            return None
        ids = list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        if self._tokenizer.eos_token_id is not None:
            ids.append(int(self._tokenizer.eos_token_id))
        return np.array(ids[: self._config.task.max_response_length], np.int32)

    def _anchor(self, row: Row, prompt: str) -> str | None:
        reward = self._config.reward
        source = reward.route_of(self._config.task.kind, lambda: row.info)
        if source in self._files:
            found = self._files[source].get(prompt)
            return None if found is None else found.text
        text = row.info.get(self._columns.get(source or "", ""))
        return text if isinstance(text, str) else None

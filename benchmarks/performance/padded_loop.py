"""The learner benchmarks' reference: a loop over length-bucketed padded batches.

One update of T-PPO as a short script would write it: values without gradient, GAE by the backward
recursion on padded rows, whitening, clipped surrogate, squared error to the Monte-Carlo return;
torch's AdamW, bf16 autocast, transformers' own attention; no DeepSpeed and no packing. Rows are
padded on the right, so that the causal mask alone keeps padding out and attention needs no other
(which makes the reference faster).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from headrace.protocol.messages.batches import PolicyWindow, Shard, ValueTrajectory

Rows = list[dict[str, Any]]


class PaddedLoop:
    """Padded training loop of both models."""

    def __init__(self, model: Path, *, budget: int, lr: tuple[float, float]) -> None:
        """`budget`: maximum tokens of a batch, padding included."""
        self._budget = budget
        loaded: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": "sdpa"}
        self._policy = AutoModelForCausalLM.from_pretrained(model, **loaded)
        self._critic = AutoModelForTokenClassification.from_pretrained(
            model, num_labels=1, **loaded
        )
        torch.nn.init.zeros_(self._critic.score.weight)
        self._optimizers = {
            m: torch.optim.AdamW(
                m.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
            )
            for m, rate in zip((self._policy, self._critic), lr, strict=True)
        }
        self.computed = self.useful = 0

    def run(self, shard: Shard) -> None:
        """Run one update."""

        def row(item: PolicyWindow | ValueTrajectory, start: int) -> dict[str, Any]:
            sequence = shard.sequences[item.sequence]
            ids = torch.from_numpy(sequence.token_ids.astype("int64"))
            return {"ids": ids, "from": sequence.opening + start, "reward": item.score}

        windows = [
            {**row(w, w.start), "finished": w.finished, "old": torch.from_numpy(w.logprobs.copy())}
            for w in shard.windows
        ]
        self._advantages(windows)
        self._step(self._critic, self._value_loss, [row(v, 0) for v in shard.values])
        self._step(self._policy, self._policy_loss, windows)

    def _buckets(self, rows: Rows) -> list[Rows]:
        buckets: list[Rows] = [[]]
        for row in sorted(rows, key=lambda r: -r["ids"].numel()):
            longest = buckets[-1][0]["ids"].numel() if buckets[-1] else 0
            if (len(buckets[-1]) + 1) * longest > self._budget:
                buckets.append([])
            buckets[-1].append(row)
        return [bucket for bucket in buckets if bucket]

    def _padded(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Token ids and the mask of tokens of interest, both [n, L]."""
        ids = pad_sequence([row["ids"] for row in rows], batch_first=True)
        begin, end = (
            torch.tensor(each).unsqueeze(1)
            for each in ([row["from"] for row in rows], [row["ids"].numel() for row in rows])
        )
        places = torch.arange(ids.shape[1])
        self.useful += int(end.sum())
        self.computed += ids.numel()
        return ids, (begin <= places) & (places < end)

    def _values(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """[n, L] value before each token, and the mask of tokens of interest."""
        ids, wanted = self._padded(rows)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            values = self._critic(ids).logits.float().squeeze(-1)
        return torch.nn.functional.pad(values[:, :-1], (1, 0)), wanted

    @torch.no_grad()
    def _advantages(self, windows: Rows) -> None:
        for rows in self._buckets(windows):
            values, wanted = self._values(rows)
            for i, row in enumerate(rows):
                row["values"] = values[i][wanted[i]]
        for row in windows:
            v = row["values"].tolist()
            following = 0.0 if row["finished"] else v[-1]
            total, result = 0.0, [0.0] * len(v)
            for t in reversed(range(len(v))):
                reward = row["reward"] if t == len(v) - 1 else 0.0
                total = reward + following - v[t] + 0.95 * total
                result[t], following = total, v[t]
            row["advantages"] = torch.tensor(result)
        everything = torch.cat([row["advantages"] for row in windows])
        mean, spread = everything.mean(), everything.std() + 1e-8
        for row in windows:
            row["advantages"] = ((row["advantages"] - mean) / spread).clamp(-10, 10)

    def _step(self, model: Any, loss: Callable[[Rows], Tensor], rows: Rows) -> None:
        tokens = sum(row["ids"].numel() - row["from"] for row in rows)
        for bucket in self._buckets(rows):
            (loss(bucket) / tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        self._optimizers[model].step()
        self._optimizers[model].zero_grad()

    def _value_loss(self, rows: Rows) -> Tensor:
        values, wanted = self._values(rows)
        targets = torch.tensor([row["reward"] for row in rows]).unsqueeze(1).expand_as(values)
        return 0.5 * (values - targets)[wanted].square().sum()

    def _policy_loss(self, rows: Rows) -> Tensor:
        ids, wanted = self._padded(rows)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = self._policy(ids).logits
        chosen = logits[:, :-1][wanted[:, 1:]].float().log_softmax(-1)
        new = chosen.gather(1, ids[wanted].unsqueeze(1)).squeeze(1)
        old = torch.cat([row["old"] for row in rows])
        advantages = torch.cat([row["advantages"] for row in rows])
        ratio = (new - old).exp()
        return torch.maximum(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.28)).sum()

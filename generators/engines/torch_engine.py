"""Small sampler in pure PyTorch for full-attention causal models of transformers.

For tiny models, for tests, and for platforms without vLLM. One thread computes: either a prefill of
all new requests (prompts padded on the left, one forward) or one decode step of all live rows over
a shared cache of keys and values. Weights change between two steps. A token's draw depends on the
request's seed and the token's position alone, and not on the division of a response into requests.
With `batch_invariant` nothing else changes it, to the bit: rows, and the tokens of a response,
including those of a resumed request, are computed one at a time.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, DynamicCache

from generators.engine import (
    NO_VERSION,
    DeltaFinish,
    EngineDeadError,
    GenerationRequest,
    LoadReport,
    RequestError,
    TokenDelta,
    WeightsRefusedError,
    uniform,
)
from generators.engines.distributions import hot_logprobs, narrow
from generators.engines.weights import WeightLayout
from headrace.errors import UserError, first_line
from headrace.host.hardware import has_gpu

KeysAndValues = list[tuple[torch.Tensor, torch.Tensor]]
"""Per layer keys and values [rows, heads, length, head size], padded on the left."""
LogitsAndCache = tuple[torch.Tensor, KeysAndValues]
STATES = {"linear_attention", "conv", "mamba", "recurrent"}
"""Kinds of layers that keep a state instead of keys and values."""


@dataclass(eq=False, slots=True)
class _RequestRow:
    """A live request, a row of the batch. `known`: prompt and generated tokens."""

    request: GenerationRequest
    known: list[int]
    out: asyncio.Queue[TokenDelta | Exception] = field(default_factory=asyncio.Queue)
    finish: DeltaFinish | None = None

    @property
    def generated(self) -> int:
        return len(self.known) - len(self.request.prompt_ids)


class TorchEngine:
    """See the module's docstring; the promises are those of `engine.Engine`."""

    def __init__(
        self,
        model: str,
        layout: WeightLayout,
        *,
        end_token_ids: tuple[int, ...],
        max_model_len: int,
        max_num_seqs: int = 128,
        dtype: str = "float32",
        recompute_on_update: bool = False,
        batch_invariant: bool = False,
        trust_remote_code: bool = False,
        wide_head: bool = False,
    ) -> None:
        self.version = NO_VERSION
        self._path, self._layout, self._dtype = model, layout, dtype
        self._ends = frozenset(end_token_ids)
        self._max_model_len, self._max_num_seqs = max_model_len, max_num_seqs
        self.recompute_on_update, self._trust = recompute_on_update, trust_remote_code
        self._wide_head = wide_head
        self._compute = self._row_by_row if batch_invariant else self._together
        self._device = torch.device("cuda" if has_gpu() else "cpu")
        self._model: Any = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sampler")
        self._rows: dict[str, _RequestRow] = {}
        """Every request whose stream has not ended, in order of arrival."""
        self._decoding: list[_RequestRow] = []
        """Rows of the cache, in its order."""
        self._cache: KeysAndValues = []
        self._steps: asyncio.Task[None] | None = None
        self._work = asyncio.Event()
        self.prefill_tokens = self.preempted = 0

    async def start(self) -> None:
        torch.set_num_threads(1)
        try:
            model = AutoModelForCausalLM.from_pretrained(
                self._path, dtype=self._dtype, trust_remote_code=self._trust, use_safetensors=True
            )
        except (OSError, ValueError) as error:
            reason = first_line(error)
            raise UserError(f"model.path={self._path} cannot be loaded: {reason}") from error
        kinds = set(getattr(model.config.get_text_config(), "layer_types", None) or ())
        if model._is_stateful or kinds & STATES:
            raise UserError(
                f"generator.engine = 'torch' keeps keys and values alone, and "
                f"{model.config.model_type} has layers with a state: take 'vllm'"
            )
        if self._wide_head:
            head = model.get_output_embeddings()
            head.forward = partial(_wide_product, head)
        self._model = model.to(self._device).eval().requires_grad_(False)
        self._steps = asyncio.create_task(self._run())

    async def generate(self, request: GenerationRequest) -> AsyncIterator[TokenDelta]:
        if len(request.prompt_ids) >= self._max_model_len:
            raise RequestError(f"{len(request.prompt_ids)} tokens leave no room for a response")
        if self._steps is None or self._steps.done():
            raise EngineDeadError("the sampler does not run")
        row = self._rows[request.request_id] = _RequestRow(request, list(request.prompt_ids))
        self._work.set()
        try:
            while True:
                delta = await row.out.get()
                if isinstance(delta, Exception):
                    raise EngineDeadError("the sampler failed") from delta
                yield delta
                if delta.finish is not None:
                    return
        finally:
            row.finish = row.finish or "aborted"
            if self._rows.get(request.request_id) is row:
                del self._rows[request.request_id]

    async def abort(self, request_id: str) -> None:
        row = self._rows.pop(request_id, None)
        if row is not None and row.finish is None:
            row.finish = "aborted"
            row.out.put_nowait(TokenDelta([], [], self.version, "aborted"))

    async def load_weights(self, path: Path, version: int) -> LoadReport:
        loop, began = asyncio.get_running_loop(), time.perf_counter()
        # Of experts a file has many weights, and the model one.
        if odd := self._layout.shapes.keys() - self._model.state_dict().keys():
            raise WeightsRefusedError(f"torch has no {min(odd)}: set generator.engine to vllm")
        if reason := await asyncio.to_thread(self._layout.mismatch, path):
            raise WeightsRefusedError(reason)
        try:  # Three versions are kept: the owner may remove it now, or before the step ends.
            weights = await asyncio.to_thread(load_file, path)
        except OSError as error:
            raise WeightsRefusedError(str(error)) from error
        gap = await loop.run_in_executor(self._thread, self._load, weights, version)
        return LoadReport(gap, time.perf_counter() - began)

    async def stop(self) -> None:
        for request_id in list(self._rows):
            await self.abort(request_id)
        if self._steps is not None:
            self._steps.cancel()
            await asyncio.gather(self._steps, return_exceptions=True)
        self._thread.shutdown()

    async def _run(self) -> None:
        """Step while there is something to do; hand each token to its stream."""
        loop = asyncio.get_running_loop()
        while True:
            live = list(self._rows.values())[: self._max_num_seqs]
            if not live:
                self._work.clear()
                await self._work.wait()
                continue
            try:
                sampled = await loop.run_in_executor(self._thread, self._step, live)
            except Exception as error:  # supervision boundary: every stream gets the cause
                for row in self._rows.values():
                    row.out.put_nowait(error)
                raise
            for row, delta in sampled:
                if row.finish is None:
                    row.finish = delta.finish
                    row.out.put_nowait(delta)
                    if delta.finish is not None:
                        self._rows.pop(row.request.request_id, None)

    # -- in the sampler's thread -------------------------------------------------------------------

    def _load(self, weights: dict[str, torch.Tensor], version: int) -> float:
        began = time.perf_counter()
        self._model.load_state_dict(weights, strict=False)
        self.version = version
        if self.recompute_on_update:
            self._decoding, self._cache = [], []
        return time.perf_counter() - began

    @torch.inference_mode()
    def _step(self, live: list[_RequestRow]) -> list[tuple[_RequestRow, TokenDelta]]:
        """Prefill new requests, or else decode one token of every row."""
        self._keep_rows(set(live))
        new = [row for row in live if row not in self._decoding]
        rows = new or self._decoding
        if new:
            logits, cache = self._compute(new, [])
            self._cache = _beside(self._cache, cache)
            self._decoding += new
            self.prefill_tokens += sum(len(row.known) for row in new)
        else:
            logits, self._cache = self._compute(rows, self._cache)
        positions = [row.request.position + row.generated for row in rows]
        token_ids, logprobs = sample(logits, [row.request for row in rows], positions, self._ends)
        sampled = []
        for row, token, logprob in zip(rows, token_ids, logprobs, strict=True):
            hot = row.request.fire is not None and row.generated == 0
            row.known.append(token)
            finish: DeltaFinish | None = None
            if token in self._ends:
                finish = "stop"
            elif row.generated >= row.request.max_tokens or len(row.known) >= self._max_model_len:
                finish = "length"
            sampled.append((row, TokenDelta([token], [logprob], self.version, finish, hot)))
        return sampled

    def _keep_rows(self, live: set[_RequestRow]) -> None:
        """Take ended rows out of the cache, and padding that no row needs any more."""
        keep = [i for i, row in enumerate(self._decoding) if row in live]
        if len(keep) == len(self._decoding):
            return
        self._decoding = [self._decoding[i] for i in keep]
        longest = max((len(row.known) - 1 for row in self._decoding), default=0)
        index = torch.tensor(keep, device=self._device)
        kept = self._cache if keep else []
        self._cache = [(k[index, :, -longest:], v[index, :, -longest:]) for k, v in kept]

    def _together(self, rows: list[_RequestRow], cache: KeysAndValues) -> LogitsAndCache:
        """Compute all rows in one forward, as `_forward` returns it."""
        return self._forward([row.known for row in rows], cache)

    def _row_by_row(self, rows: list[_RequestRow], cache: KeysAndValues) -> LogitsAndCache:
        """Compute each row alone: without padding, token by token after the prompt."""
        found = []
        for place, row in enumerate(rows):
            known = row.known
            if cache:
                done = len(known) - 1
                own = [(k[place, None, :, -done:], v[place, None, :, -done:]) for k, v in cache]
            else:
                # The prompt, or of an agent's answer, which has none, its first token.
                done = max(1, len(known) - row.request.position - row.generated)
                logits, own = self._forward([known[:done]], [])
            for length in range(done + 1, len(known) + 1):
                logits, own = self._forward([known[:length]], own)
            found.append((logits, own))
        return torch.cat([logits for logits, _ in found]), _beside(*[own for _, own in found])

    def _forward(self, known: list[list[int]], cache: KeysAndValues) -> LogitsAndCache:
        """Return float32 next-token logits [rows, vocabulary], and all tokens' cache."""
        lengths = torch.tensor([len(ids) for ids in known])
        longest = int(lengths.max())
        width = 1 if cache else longest
        ids = torch.tensor([([0] * (longest - len(row)) + row)[-width:] for row in known])
        places = torch.arange(longest) - (longest - lengths[:, None])
        output = self._model(
            input_ids=ids.to(self._device),
            attention_mask=(places >= 0).long().to(self._device),
            position_ids=places.clamp(min=0)[:, -width:].to(self._device),
            past_key_values=DynamicCache(cache) if cache else DynamicCache(),
            use_cache=True,
            logits_to_keep=1,
        )
        layers = output.past_key_values.layers
        return output.logits[:, -1].float(), [(layer.keys, layer.values) for layer in layers]


def _wide_product(head: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """Compute the head's logits in float32, with its present weights."""
    bias = None if head.bias is None else head.bias.float()
    return torch.nn.functional.linear(x.float(), head.weight.float(), bias)


def _beside(*caches: KeysAndValues) -> KeysAndValues:
    """Join caches, rows of the first before those of the second, padded on the left."""
    there = [cache for cache in caches if cache]
    if len(there) == 1:
        return there[0]
    length = max(cache[0][0].shape[2] for cache in there)

    def joined(parts: Iterable[torch.Tensor]) -> torch.Tensor:
        return torch.cat(
            [torch.nn.functional.pad(x, (0, 0, length - x.shape[2], 0)) for x in parts]
        )

    return [(joined(k for k, _ in x), joined(v for _, v in x)) for x in zip(*there, strict=True)]


def sample(
    logits: torch.Tensor,
    requests: list[GenerationRequest],
    positions: list[int],
    end_token_ids: Collection[int] = (),
) -> tuple[list[int], list[float]]:
    """Draw one token per row of logits [rows, vocabulary]; return ids and logprobs.

    Logprobs are after temperature, top-k and top-p; a request's hot token is its first. The
    draw inverts the distribution function at uniform(seed, position)."""
    temperature = torch.tensor([r.temperature or 1.0 for r in requests], device=logits.device)
    logprobs = torch.log_softmax(logits / temperature[:, None], dim=-1)
    hot = [
        r.fire if position == r.position else None
        for r, position in zip(requests, positions, strict=True)
    ]
    for row, (request, fire) in enumerate(zip(requests, hot, strict=True)):
        if fire is not None:
            logprobs[row] = hot_logprobs(logits[row], fire, end_token_ids)
        elif request.temperature and (request.top_k > 0 or request.top_p < 1.0):
            logprobs[row] = narrow(logprobs[row], request.top_k, request.top_p)
    cumulative = logprobs.double().exp().cumsum(dim=-1)
    draws = torch.tensor(
        [uniform(r.seed, position) for r, position in zip(requests, positions, strict=True)],
        dtype=torch.float64,
        device=logits.device,
    )
    token_ids = torch.searchsorted(
        cumulative, draws[:, None] * cumulative[:, -1:], right=True
    ).clamp(max=logits.shape[-1] - 1)
    greedy = torch.tensor(
        [r.temperature == 0.0 and fire is None for r, fire in zip(requests, hot, strict=True)],
        device=logits.device,
    )
    token_ids = torch.where(greedy[:, None], logits.argmax(dim=-1, keepdim=True), token_ids)
    chosen = logprobs.gather(-1, token_ids)
    return token_ids[:, 0].tolist(), chosen[:, 0].tolist()

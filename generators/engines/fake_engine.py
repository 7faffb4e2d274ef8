"""Scripted engine without a model, for tests and transport benchmarks.

Tokens and logprobs are a hash of (prompt, seed, position). Lengths follow an exponential law with
mean `mean_length`, drawn by the same hash. A hot token is the regular token's id plus one, with the
logprob of an even choice among the candidates. Of weights only the version matters. It is never a
default of anything a user runs.
"""

import asyncio
import math
import time
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np

from generators.engine import (
    NO_VERSION,
    DeltaFinish,
    GenerationRequest,
    LoadReport,
    RequestError,
    TokenDelta,
    WeightsRefusedError,
    uniform,
)
from headrace.protocol.messages.control import FireSampling

_LENGTH_STREAM = 1 << 40


class FakeEngine:
    """See the module's docstring; the promises are those of `engine.Engine`."""

    def __init__(
        self,
        *,
        vocab_size: int = 128,
        end_token_id: int = 2,
        mean_length: float = 64.0,
        seed: int = 0,
        step_s: float = 0.0,
        max_model_len: int = 1 << 20,
    ) -> None:
        self.version = NO_VERSION
        self._vocab_size, self._end, self._mean = vocab_size, end_token_id, mean_length
        self._seed, self._step_s, self._max_model_len = seed, step_s, max_model_len
        self._live: dict[str, asyncio.Event] = {}
        self.prefill_tokens = self.preempted = 0

    async def start(self) -> None:
        """Do nothing: there is no model."""

    async def generate(self, request: GenerationRequest) -> AsyncIterator[TokenDelta]:
        """Yield one token per step."""
        if len(request.prompt_ids) >= self._max_model_len:
            raise RequestError(f"{len(request.prompt_ids)} tokens leave no room for a response")
        aborted = self._live[request.request_id] = asyncio.Event()
        self.prefill_tokens += len(request.prompt_ids)
        prompt = request.prompt_ids[: len(request.prompt_ids) - request.position]
        key = zlib.crc32(np.array(prompt, dtype=np.int32).tobytes()) ^ (request.seed << 32)
        ends_at = self._length(key)
        if request.position >= ends_at:  # a later turn, which has a length of its own
            ends_at = request.position + self._length(key ^ request.position)
        if request.fire is not None and request.fire.ban_eos:
            ends_at = max(request.position + 2, ends_at)
        try:
            for step in range(request.max_tokens):
                await asyncio.sleep(self._step_s)
                if aborted.is_set():
                    yield TokenDelta([], [], self.version, "aborted")
                    return
                position = request.position + step
                finish: DeltaFinish | None = "length" if step + 1 == request.max_tokens else None
                if position + 1 >= ends_at:
                    finish = "stop"
                token, logprob = self._token(key, position, finish == "stop")
                hot = request.fire if step == 0 else None
                if hot is not None:
                    token, logprob = self._hot_token(token, hot, finish == "stop")
                yield TokenDelta([token], [logprob], self.version, finish, hot is not None)
                if finish is not None:
                    return
        finally:
            del self._live[request.request_id]

    async def abort(self, request_id: str) -> None:
        if request_id in self._live:
            self._live[request_id].set()

    async def load_weights(self, path: Path, version: int) -> LoadReport:
        """Take the version; the file only has to exist."""
        began = time.perf_counter()
        if not path.exists():
            raise WeightsRefusedError(f"{path} does not exist")
        self.version = version
        return LoadReport(0.0, time.perf_counter() - began)

    async def stop(self) -> None:
        for aborted in self._live.values():
            aborted.set()

    def _length(self, key: int) -> int:
        draw = uniform(key ^ self._seed, _LENGTH_STREAM)
        return 1 + int(-self._mean * math.log1p(-draw))

    def _hot_token(self, token: int, hot: FireSampling, last: bool) -> tuple[int, float]:
        if not last:
            token = (token + 1) % self._vocab_size
            token += token == self._end
        candidates = hot.top_k if hot.top_k > 0 else self._vocab_size
        return token % self._vocab_size, -math.log(min(candidates, self._vocab_size))

    def _token(self, key: int, position: int, last: bool) -> tuple[int, float]:
        draw = uniform(key, position)
        token = self._end if last else int(draw * self._vocab_size)
        if token == self._end and not last:
            token = (token + 1) % self._vocab_size
        return token, -math.log(self._vocab_size) * (0.5 + draw)

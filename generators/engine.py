"""Contract of an engine: requests and weights in, tokens with logprobs out.

Every implementation (`vllm_engine`, `torch_engine`, `fake_engine`) keeps all of this; the contract
tests check each point on each of them:

- `generate` yields deltas of one or more tokens in order, and exactly one last delta whose `finish`
  is set (it may have no tokens): `stop` (an end token, which is included), `length` (`max_tokens`
  reached), or `aborted`.
- A token's logprob is of the distribution it was sampled from: after temperature, top-p, top-k.
- A request with `fire` has a hot first token: drawn from the hot distribution, its logprob of that
  distribution, its delta marked `hot`. No other token is hot.
- Every delta is of one weight version, and the version is that of the weights whose forward pass
  gave the token's distribution. It is exact for each token, however slow the consumer is.
- The same request alone on the same weights gives the same tokens each time. With another seed or
  another `position` the draws are independent of the first.
- Requests run side by side; each makes progress whether or not the others are consumed.
- `load_weights` may be called at any time: live requests stand still, keep what they have, and go
  on. A file that does not fit is refused with WeightsRefusedError and changes nothing.
- `abort` ends a request's stream with `aborted`; an unknown or ended id is ignored. Cancelling the
  consumer of a stream aborts the request too.
- An engine that cannot go on raises EngineDeadError from every stream; a request that cannot be
  served raises RequestError from its own.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from headrace.protocol.messages.control import FireSampling
from headrace.protocol.token_spans import MediaRun

DeltaFinish = Literal["stop", "length", "aborted"]
NO_VERSION = -1


class EngineDeadError(Exception):
    """The engine cannot go on; its process must be replaced."""


class RequestError(Exception):
    """A request cannot be served (for example: longer than the model's context)."""


class WeightsRefusedError(Exception):
    """A weight file was not loaded: the engine samples from the version it had before."""


class WeightsBrokenError(Exception):
    """Loading failed half-way, and going back, too: the engine waits for a good load."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Request for one stream of tokens.

    `prompt_ids` are all known tokens (prompt and earlier response); `position` is the number of
    these that are earlier response, so that the draws of a resumed response are not those of its
    beginning. `top_k` -1: all tokens. `temperature` 0: greedy. `fire`: sampling of a hot first
    token, whatever the other settings are. `cache_version`: the weights whose keys and values a
    prefix cache may answer with; -1: those that are loaded. `media`: the images of the placeholders
    in `prompt_ids`."""

    request_id: str
    prompt_ids: list[int]
    max_tokens: int
    seed: int
    position: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    fire: FireSampling | None = None
    cache_version: int = -1
    media: Sequence[MediaRun] = ()


class TokenDelta(NamedTuple):
    """Tokens of one stream and version, and as many natural-log probabilities.

    `hot`: the first of these tokens was drawn by FIRE sampling."""

    token_ids: list[int]
    logprobs: list[float]
    version: int
    finish: DeltaFinish | None = None
    hot: bool = False


class LoadReport(NamedTuple):
    """Seconds without generation in a weight load, and of the whole, with checks."""

    gap_s: float
    load_s: float


class Engine(Protocol):
    """Interface of engines; see the module's docstring."""

    version: int
    """Version of the loaded weights; NO_VERSION before the first `load_weights`."""
    prefill_tokens: int
    """Prompt tokens computed so far, cached ones apart."""
    preempted: int
    """Requests whose keys and values gave way to others', counted when weights load."""

    async def start(self) -> None:
        """Build the model and warm up. UserError when model or settings cannot work."""

    def generate(self, request: GenerationRequest) -> AsyncIterator[TokenDelta]:
        """Yield the request's stream; `request_id` is unique among live requests."""

    async def abort(self, request_id: str) -> None:
        """End a stream early."""

    async def load_weights(self, path: Path, version: int) -> LoadReport:
        """Sample from the safetensors file (Hugging Face names) from now on, as `version`."""

    async def stop(self) -> None:
        """End all streams and free everything."""


_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def mix(seed: int, position: int) -> int:
    """Return a 64-bit hash of a seed and a position, for any division into requests.

    The mixer is splitmix64 (Steele, Lea, Flood 2014)."""
    z = (seed * _GOLDEN + (position + 1) * 0xD1B54A32D192ED03) & _MASK
    for _ in range(2):
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        z = (z ^ (z >> 31)) + _GOLDEN & _MASK
    return z


def uniform(seed: int, position: int) -> float:
    """Return a number in [0, 1) with 53 random bits."""
    return (mix(seed, position) >> 11) * 2.0**-53

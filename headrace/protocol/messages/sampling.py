"""Messages between a sampler (an engine without a run) and its parent process.

One JSON object per line over the sampler's stdin and stdout. In: the run's configuration
(`RunConfig` as JSON) on the first line, then `SampleRequest`s. Out: `Ready` or `Unfit`, then one
`Written` (or `Refused`) per request, in the order in which they end.
"""

import msgspec

MAX_LINE_BYTES = 1 << 26
"""Longest line that either side reads."""


class SampleRequest(msgspec.Struct, frozen=True):
    """Sample at most `max_tokens` after `prompt_ids`, whose last `position` are the response's."""

    number: int
    prompt_ids: list[int]
    position: int
    max_tokens: int
    seed: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The engine is up."""


class Unfit(msgspec.Struct, frozen=True, tag=True):
    """There is no engine, by the user's mistake."""

    error: str


class Written(msgspec.Struct, frozen=True, tag=True):
    """Sampled tokens of a request with their logprobs; `finished`: the last is an end token."""

    number: int
    ids: list[int]
    logprobs: list[float]
    finished: bool


class Refused(msgspec.Struct, frozen=True, tag=True):
    """A request that cannot be served."""

    number: int
    error: str


SamplerReply = Ready | Unfit | Written | Refused

answer_decoder: msgspec.json.Decoder[SamplerReply] = msgspec.json.Decoder(SamplerReply)
ask_decoder: msgspec.json.Decoder[SampleRequest] = msgspec.json.Decoder(SampleRequest)


def line_of(message: SampleRequest | SamplerReply) -> bytes:
    """A message as a line."""
    return msgspec.json.encode(message) + b"\n"

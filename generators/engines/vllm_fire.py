"""Hot first tokens inside vLLM: a logits processor, loaded by name.

In: requests whose `extra_args` hold `EXTRA_ARG`, and a step's logits. Out: the logits of each such
request that has no output token yet, replaced so that vLLM draws from the hot distribution q and
reports log q. All other rows stay as they are. One request makes the whole response: nothing is
prefilled twice.

vLLM divides logits by the request's temperature T after this processor and normalises them, so it
leaves T log q. Any other change of the logits between these two, or after them, would change q
unnoticed; `validate_params` refuses requests that ask for one.
"""

from typing import Any, NamedTuple

import msgspec
import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, process_dict_updates

from generators.engines.distributions import hot_logprobs
from headrace.protocol.messages.control import FireSampling

EXTRA_ARG = "headrace_fire"


class _HotRequest(NamedTuple):
    """A request with a hot token to come. `output_ids` is vLLM's own growing list."""

    fire: FireSampling
    temperature: float
    end_token_ids: tuple[int, ...]
    banned_ids: list[int]
    output_ids: list[int]


def hot_sampling(params: SamplingParams) -> FireSampling | None:
    """Read the settings of a request's hot token; ValueError where they are malformed."""
    extra = (params.extra_args or {}).get(EXTRA_ARG)
    try:
        return None if extra is None else msgspec.convert(extra, FireSampling)
    except msgspec.ValidationError as error:
        raise ValueError(f"{EXTRA_ARG}: {error}") from error


def undone_by(params: SamplingParams, fire: FireSampling) -> str | None:
    """Return the setting of a request that would undo its hot token, or None."""
    if params.temperature <= 0:
        return "temperature = 0 takes the likeliest token"
    if fire.temperature <= params.temperature:
        return f"temperature = {params.temperature:g} is no cooler than {fire.temperature:g}"
    if params.top_k > 0 and not 0 < fire.top_k <= params.top_k:
        return f"top_k = {params.top_k} cuts {fire.top_k} candidates down"
    if any(bias > -100.0 for bias in (params.logit_bias or {}).values()):  # -100 bans a token
        return f"logit_bias = {params.logit_bias!r} changes the distribution"
    for name, neutral in _NEUTRAL.items():
        if getattr(params, name) != neutral:
            return f"{name} = {getattr(params, name)!r} changes the distribution"
    return None


_NEUTRAL: dict[str, Any] = {
    "top_p": 1.0,
    "min_p": 0.0,
    "allowed_token_ids": None,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}


class HotToken(LogitsProcessor):
    """Logits processor of hot tokens, for vLLM's version 1 model runner."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """ValueError where a request's own settings would undo its hot token."""
        fire = hot_sampling(sampling_params)
        if fire is not None and (reason := undone_by(sampling_params, fire)):
            raise ValueError(f"the first token would not be hot: {reason}")

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._rows: dict[int, _HotRequest] = {}

    def is_argmax_invariant(self) -> bool:
        """Return False: a banned end token may have been the likeliest one."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow requests through the batch; forget those that have a token."""
        process_dict_updates(self._rows, batch_update, _state)
        self._rows = {row: hot for row, hot in self._rows.items() if not hot.output_ids}

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Replace the rows of hot tokens in logits [rows, vocabulary]."""
        for row, hot in self._rows.items():
            logits[row, hot.banned_ids] = -torch.inf  # At a temperature of 30 a bias bans nothing.
            logits[row] = hot.temperature * hot_logprobs(logits[row], hot.fire, hot.end_token_ids)
        return logits


def _state(
    params: SamplingParams, prompt_ids: list[int] | None, output_ids: list[int]
) -> _HotRequest | None:
    fire = hot_sampling(params)
    if fire is None or output_ids:
        return None
    ends, banned = tuple(params.stop_token_ids or ()), list(params.logit_bias or ())
    return _HotRequest(fire, params.temperature, ends, banned, output_ids)

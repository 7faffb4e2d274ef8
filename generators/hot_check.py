"""A check before the first lease: does this engine really draw hot tokens hot?

Nothing fails when it does not: an engine without the logits processor ignores the request, other
sampling settings may replace the hot token's temperature, and logprobs of the wrong distribution
look like any others. So this check sends the engine one request. At a boundless temperature the
candidates are equally likely whatever the model, so that the hot token's logprob must be -log of
their number, and no other token is marked.
"""

import math

from generators.engine import Engine, GenerationRequest, RequestError
from headrace.errors import UserError
from headrace.protocol.messages import FireSampling

PROBE = FireSampling(temperature=1e8, top_k=3)
_TOLERANCE = 1e-3


async def check_hot(engine: Engine, *, temperature: float) -> None:
    """UserError unless the first token of a request with `fire` is hot and is alone in that.
    `temperature`: of the run's other tokens. The engine has been started."""
    request = GenerationRequest(
        "hot-token-check", [1, 2, 3], max_tokens=2, seed=1, temperature=temperature, fire=PROBE
    )
    try:
        deltas = [delta async for delta in engine.generate(request)]
    except RequestError as error:
        raise UserError(f"generator.fire cannot work: {error}") from error
    marks = [i == 0 and delta.hot for delta in deltas for i in range(len(delta.token_ids))]
    logprobs = [logprob for delta in deltas for logprob in delta.logprobs]
    even = -math.log(PROBE.top_k)
    if marks[:1] != [True] or any(marks[1:]) or abs(logprobs[0] - even) > _TOLERANCE:
        found = f"logprob {logprobs[0]:.3f}" if logprobs else "no token"
        raise UserError(
            f"generator.fire cannot work: this engine's first token is not hot ({found} instead "
            f"of {even:.3f} in a test); leave [generator.fire] out, or use another generator.engine"
        )

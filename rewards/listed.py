"""What a function returned for several things at once, one by one.

In: a list, an array or a tensor. Out: its entries. Promise: as many as there were things to score;
all else raises InvalidRewardError.
"""

from collections.abc import Sequence
from typing import Any

from rewards.known import InvalidRewardError


def entries(result: Any, number: int, what: str) -> Sequence[Any]:
    """The `number` entries of a result, one for each of what was scored."""
    if hasattr(result, "tolist"):
        result = result.tolist()
    if not isinstance(result, Sequence) or isinstance(result, str | bytes):
        raise InvalidRewardError(
            f"the result is {type(result).__name__}, where a list of {number} belongs, one entry "
            f"for each of the {what}"
        )
    if len(result) != number:
        raise InvalidRewardError(f"a list of {len(result)} for {number} {what}")
    return result

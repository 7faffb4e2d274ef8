"""The layers that can be had on this machine, for tests that need one."""

import asyncio
import functools

import pytest

from headrace.errors import RunFailedError
from sandbox.isolation_check import LAYERS
from sandbox.limits import Program
from sandbox.pool import Sandbox


@functools.cache
def _refusal(layer: str) -> str:
    async def try_it() -> None:
        async with Sandbox(parallel=1, layer=layer) as sandbox:
            await sandbox.run(Program("pass"))

    try:
        asyncio.run(try_it())
    except RunFailedError as error:
        return str(error)
    return ""


def need(layer: str) -> str:
    """The layer; skips the test where the machine does not let it be had."""
    if _refusal(layer):
        pytest.skip(f"{layer}: {_refusal(layer)}")
    return layer


each_layer = pytest.mark.parametrize("layer", list(LAYERS))

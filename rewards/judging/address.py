"""Address of a judge: a server by its URL, or a judge of the run.

In: options. Out: a function that gives the address as it is now; a judge of the run has a new one
when it was started again, and none before it serves.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from headrace.errors import UserError
from headrace.protocol.messages.judges import JUDGES_VARIABLE, read_address
from rewards.judging.options import Options


class JudgeAddress(NamedTuple):
    """`base` ends where `/chat/completions` begins."""

    base: str
    model: str
    key: str | None = None


AddressLookup = Callable[[], JudgeAddress | None]


def address_lookup(options: Options) -> AddressLookup:
    """Return a lookup of the judge's address; UserError where there can be none."""
    if options.url is not None:
        address = _of_url(options.url, options)
        return lambda: address
    name, folder = options.judge, os.environ.get(JUDGES_VARIABLE)
    assert name is not None

    def now() -> JudgeAddress | None:
        found = read_address(Path(folder), name) if folder else None
        return None if found is None else JudgeAddress(found.base, found.model, found.key)

    return now


def _of_url(url: str, options: Options) -> JudgeAddress:
    assert options.model is not None
    key = None
    if options.api_key_env is not None:
        key = os.environ.get(options.api_key_env)
        if not key:
            raise UserError(
                f"option api_key_env of kind 'judge': there is no variable {options.api_key_env}"
            )
    bare = url.rstrip("/")
    base = bare if urlsplit(bare).path else f"{bare}/v1"
    return JudgeAddress(base, options.model, key)

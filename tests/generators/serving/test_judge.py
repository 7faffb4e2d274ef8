"""What a judge says of itself to those that ask it."""

import errno
from pathlib import Path
from typing import Any

import httpx
import pytest

from generators.serving import judge
from headrace.protocol.messages.judges import JudgeAddress, read_address, write_address


async def test_an_address_that_a_full_disk_did_not_take_comes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = [OSError(errno.ENOSPC, "No space left on device")]

    async def answered(client: httpx.AsyncClient, url: str, **asked: Any) -> httpx.Response:
        return httpx.Response(200, request=httpx.Request("POST", url))

    def write(folder: Path, name: str, address: JudgeAddress) -> None:
        if refusals:
            raise refusals.pop()
        write_address(folder, name, address)

    monkeypatch.setattr(httpx.AsyncClient, "post", answered)
    monkeypatch.setattr(judge, "write_address", write)
    monkeypatch.setattr(judge, "LOOK_EVERY_S", 0.01)
    address = JudgeAddress("http://127.0.0.1:1/v1", "fair", "key", 1)
    await judge._announce(address, tmp_path)
    assert read_address(tmp_path, "fair") == address

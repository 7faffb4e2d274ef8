"""Tile registers are asked for before vLLM's attention uses them."""

import pytest
import torch

from generators.engines.vllm_worker import allow_amx


@pytest.mark.parametrize(("granted", "used"), [(True, True), (False, False)])
def test_what_linux_does_not_grant_is_not_used(
    monkeypatch: pytest.MonkeyPatch, granted: bool, used: bool
) -> None:
    asked = 0

    def ask() -> bool:
        nonlocal asked
        asked += 1
        return granted

    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    monkeypatch.setattr(torch.cpu, "_init_amx", ask)
    allow_amx()
    assert asked == 1
    assert torch.cpu._is_amx_tile_supported() is used

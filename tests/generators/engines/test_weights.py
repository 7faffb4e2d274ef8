"""Fetching weights: hashes, sources in order, pieces over a socket, resumed transfers."""

import asyncio
import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import xxhash
from safetensors.torch import save_file

from generators.engines.model_files import end_token_ids, read_config, weight_layout
from generators.engines.weights import (
    WeightLayout,
    WeightsUnavailableError,
    fetch,
    read_shapes,
    seen_from,
)
from headrace.config.estimates.memory import KEPT_VERSIONS
from headrace.errors import UserError
from headrace.protocol.messages.control import WeightBytes, WeightNotice, WeightRequest
from headrace.protocol.transport.sockets import Router

DATA = bytes(range(256)) * 40


def make_notice(sources: list[str], data: bytes = DATA) -> WeightNotice:
    return WeightNotice(
        version=4,
        update=4,
        digest=xxhash.xxh3_128(data).hexdigest(),
        num_bytes=len(data),
        sources=sources,
    )


class WeightServer:
    """Answers requests with pieces of `data`; falls silent after `pieces`. Requests number `lost`
    (counted from 0) never reach it."""

    lost: tuple[int, ...] = ()

    def __init__(
        self, data: bytes, piece: int = 1000, pieces: int = 10**6, host: str = "127.0.0.1"
    ) -> None:
        self.router = Router(host, 0, max_bytes=1 << 20)
        self.data, self.piece, self.pieces = data, piece, pieces
        self.offsets: list[int] = []

    async def serve(self) -> None:
        while True:
            name, request = await self.router.receive()
            assert isinstance(request, WeightRequest)
            self.offsets.append(request.offset)
            if self.pieces and len(self.offsets) - 1 not in self.lost:
                self.pieces -= 1
                data = self.data[request.offset : request.offset + self.piece]
                answer = WeightBytes(version=request.version, offset=request.offset, data=data)
                await self.router.send(name, answer)


async def fetch_from(
    server: WeightServer, notice: WeightNotice, folder: Path, host: str = "127.0.0.1"
) -> Path:
    task = asyncio.create_task(server.serve())
    try:
        return await fetch(seen_from(notice, host), folder, name="generator-0", silence_s=0.5)
    finally:
        task.cancel()
        server.router.close()


async def test_a_file_on_this_host_is_used_where_it_lies(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(DATA)
    notice = make_notice(["file:/nowhere/at/all", f"file:{path}"])
    assert await fetch(notice, tmp_path / "cache", name="generator-0") == path


async def test_a_file_that_is_not_the_announced_one_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(DATA[:-1] + b"?")
    with pytest.raises(WeightsUnavailableError, match="digest"):
        await fetch(make_notice([f"file:{path}"]), tmp_path, name="generator-0")


async def test_pieces_come_over_the_socket_when_there_is_no_file(tmp_path: Path) -> None:
    server = WeightServer(DATA)
    notice = make_notice(["file:/nowhere", server.router.address])
    path = await fetch_from(server, notice, tmp_path)
    assert path.read_bytes() == DATA
    assert server.offsets == list(range(0, len(DATA), 1000))
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


async def test_a_learner_on_the_coordinator_s_host_is_found_from_another_one(
    tmp_path: Path,
) -> None:
    """It reaches the coordinator by loopback, and announces that address."""
    server = WeightServer(DATA, host="127.0.0.2")
    source = server.router.address.replace("127.0.0.2", "127.0.0.1")
    path = await fetch_from(server, make_notice(["file:/nowhere", source]), tmp_path, "127.0.0.2")
    assert path.read_bytes() == DATA
    # What was tried stands in the failure: a port that a firewall closes is one of that host.
    silent = WeightServer(DATA, pieces=0, host="127.0.0.2")
    notice = make_notice([silent.router.address.replace("127.0.0.2", "127.0.0.1")])
    with pytest.raises(WeightsUnavailableError, match=f"{silent.router.address}: silent"):
        await fetch_from(silent, notice, tmp_path / "other", "127.0.0.2")


async def test_generators_of_a_host_fetch_a_version_once(tmp_path: Path) -> None:
    """They share a folder, whichever of them comes first; the last versions stay for the others."""
    server, folder = WeightServer(DATA), tmp_path / "weights"
    task = asyncio.create_task(server.serve())
    notice = make_notice([server.router.address])
    names = [f"generator-{number}" for number in range(4)]
    paths = await asyncio.gather(*(fetch(notice, folder, name=name) for name in names))
    assert set(paths) == {folder / f"{notice.digest}.safetensors"}
    assert server.offsets == list(range(0, len(DATA), 1000))
    for version in range(4):
        server.data = DATA + bytes([version])
        await fetch(make_notice(notice.sources, server.data), folder, name=names[0])
    assert len(list(folder.iterdir())) == KEPT_VERSIONS + 1
    task.cancel()
    server.router.close()


async def test_versions_from_before_the_clock_was_set_back_do_not_outlast_newer_ones(
    tmp_path: Path,
) -> None:
    server, folder, tomorrow = WeightServer(DATA), tmp_path / "weights", time.time() + 86_400
    folder.mkdir()
    for number in range(KEPT_VERSIONS):
        (old := folder / f"{number}.safetensors").touch()
        os.utime(old, (tomorrow, tomorrow))
    task = asyncio.create_task(server.serve())
    paths = []
    for version in range(KEPT_VERSIONS + 1):
        server.data = DATA + bytes([version])
        notice = make_notice([server.router.address], server.data)
        paths.append(await fetch(notice, folder, name="generator-0"))
    assert set(folder.iterdir()) == set(paths)
    task.cancel()
    server.router.close()


async def test_a_small_disk_keeps_fewer_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for two and a half: a transfer that filled the disk would fill it for good."""
    server, folder, room = WeightServer(DATA), tmp_path / "weights", len(DATA) * 5 // 2
    folder.mkdir()
    (folder / "of-a-transfer-that-broke-off.part").write_bytes(DATA)

    def usage(_folder: Path) -> SimpleNamespace:
        return SimpleNamespace(free=room - sum(file.stat().st_size for file in folder.iterdir()))

    monkeypatch.setattr(shutil, "disk_usage", usage)
    task = asyncio.create_task(server.serve())
    paths = []
    for version in range(4):
        server.data = DATA + bytes([version])
        notice = make_notice([server.router.address], server.data)
        paths.append(await fetch(notice, folder, name="generator-0"))
        assert usage(folder).free >= 0
    assert set(folder.iterdir()) == set(paths[-2:])
    task.cancel()
    server.router.close()


async def test_a_broken_transfer_goes_on_where_it_ended(tmp_path: Path) -> None:
    first = WeightServer(DATA, pieces=3)
    with pytest.raises(WeightsUnavailableError, match="byte 3000"):
        await fetch_from(first, make_notice([first.router.address]), tmp_path)
    second = WeightServer(DATA)
    path = await fetch_from(second, make_notice([second.router.address]), tmp_path)
    assert path.read_bytes() == DATA
    assert second.offsets[0] == 3000


async def test_a_piece_whose_request_was_lost_is_asked_for_again(tmp_path: Path) -> None:
    server = WeightServer(DATA)
    server.lost = (0, 4, 6)
    path = await fetch_from(server, make_notice([server.router.address]), tmp_path)
    assert path.read_bytes() == DATA
    ahead = [3000, 4000, 5000, 6000]
    assert server.offsets[:12] == [0, 0, 1000, 2000, *ahead, *ahead]


async def test_more_bytes_than_announced_are_refused(tmp_path: Path) -> None:
    server = WeightServer(DATA * 2, piece=len(DATA) + 1)
    with pytest.raises(WeightsUnavailableError, match="more bytes"):
        await fetch_from(server, make_notice([server.router.address]), tmp_path)


async def test_wrong_bytes_are_thrown_away(tmp_path: Path) -> None:
    server = WeightServer(DATA[::-1])
    with pytest.raises(WeightsUnavailableError, match="digest"):
        await fetch_from(server, make_notice([server.router.address]), tmp_path)
    assert list(tmp_path.iterdir()) == []


async def test_a_file_that_lost_its_bytes_is_fetched_again(tmp_path: Path) -> None:
    """A machine that lost power may have kept the name alone."""
    server = WeightServer(DATA)
    notice = make_notice([server.router.address])
    (tmp_path / f"{notice.digest}.safetensors").touch()
    path = await fetch_from(server, notice, tmp_path)
    assert path.read_bytes() == DATA


async def test_an_empty_piece_says_that_the_version_is_gone(tmp_path: Path) -> None:
    server = WeightServer(b"")
    with pytest.raises(WeightsUnavailableError, match="gone"):
        await fetch_from(server, make_notice([server.router.address]), tmp_path)


def test_layout_names_what_does_not_fit(tmp_path: Path) -> None:
    layout = WeightLayout({"a": (2, 3), "head": (4,)}, frozenset({"head"}))

    def mismatch(**tensors: torch.Tensor) -> str | None:
        path = tmp_path / "weights.safetensors"
        save_file(tensors, str(path))
        return layout.mismatch(path)

    assert mismatch(a=torch.zeros(2, 3)) is None
    assert mismatch(a=torch.zeros(2, 3), head=torch.zeros(4)) is None
    assert "lacks 1 tensors, the first is a" in str(mismatch(head=torch.zeros(4)))
    assert "unknown" in str(mismatch(a=torch.zeros(2, 3), b=torch.zeros(1)))
    assert "shape (3, 2)" in str(mismatch(a=torch.zeros(3, 2)))


@pytest.mark.parametrize("keep", [0, 4, 8, 50, -1])
def test_a_torn_file_is_no_safetensors_file(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "weights.safetensors"
    save_file({"a": torch.zeros(2, 3)}, str(path))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"weights\.safetensors"):
        read_shapes(path)


def test_policy_files_know_the_model(model_folder: Path) -> None:
    config = read_config(str(model_folder))
    assert end_token_ids(str(model_folder), config) == (2,)
    layout = weight_layout(str(model_folder), config)
    assert layout.shapes["model.embed_tokens.weight"] == (64, 64)
    assert layout.mismatch(model_folder / "model.safetensors") is None


def test_a_missing_model_is_the_user_s_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model\.path"):
        read_config(str(tmp_path / "nothing"))

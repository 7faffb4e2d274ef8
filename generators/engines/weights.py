"""Fetching of announced weights as a checked local safetensors file.

Sources are tried in order: `file:/path` (same host: used in place) and `tcp://host:port` (the
learner's ROUTER: fetched in pieces into the cache folder, and resumed where a broken transfer
ended; generators that share the folder fetch a version once). A file counts only when its size and
digest are those of the WeightNotice. `request_broadcast` asks for a broadcast of them instead.
`WeightLayout` checks, before a live model is touched, that names and shapes are those of the
policy.
"""

import asyncio
import contextlib
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import AsyncFileLock
from msgspec.structs import replace
from safetensors import SafetensorError, safe_open

from headrace.config.estimates.memory import KEPT_VERSIONS
from headrace.protocol.messages.control import (
    BroadcastReply,
    BroadcastRequest,
    WeightBytes,
    WeightNotice,
    WeightRequest,
    weights_digest,
)
from headrace.protocol.transport.sockets import Dealer, Link

_ASKS = 2
"""Maximum number of requests for one piece."""
_AHEAD = 4
"""Pieces that are requested before the first of them is there."""
_LOOK_S = 0.1
Overtaken = Callable[[], bool]
"""Asks whether a newer version has been announced."""


class WeightsUnavailableError(Exception):
    """No source has the announced weights."""


def seen_from(notice: WeightNotice, host: str) -> WeightNotice:
    """Return a notice whose sources are those that this process reaches. `host`: the coordinator's;
    a learner that reaches it by loopback is there."""
    sources = [source.replace("//127.0.0.1:", f"//{host}:") for source in notice.sources]
    return replace(notice, sources=sources)


async def _check(path: Path, notice: WeightNotice) -> None:
    size = path.stat().st_size
    if size != notice.num_bytes:
        raise WeightsUnavailableError(f"{path} has {size} bytes, announced {notice.num_bytes}")
    if await asyncio.to_thread(weights_digest, path) != notice.digest:
        raise WeightsUnavailableError(f"{path} does not have the announced digest")


async def fetch(
    notice: WeightNotice,
    folder: Path,
    *,
    name: str,
    curve_keys: str | None = None,
    silence_s: float = 10.0,
) -> Path:
    """Return a local file of announced weights; WeightsUnavailableError without one.

    `name` is the identity towards the learner, `silence_s` the maximum time of one piece."""
    failures = []
    for source in notice.sources:
        try:
            if source.startswith("file:"):
                path = Path(source.removeprefix("file:").removeprefix("//"))
                await _check(path, notice)
                return path
            if source.startswith("tcp://"):
                link = Link(source, curve_keys=curve_keys)
                async with AsyncFileLock(folder.with_name(f"{folder.name}.lock")):
                    return await _download(notice, folder, Dealer(link, name), silence_s)
            raise WeightsUnavailableError("no file: and no tcp:// source")
        except (WeightsUnavailableError, OSError) as error:
            failures.append(f"{source}: {error}")
    raise WeightsUnavailableError(
        f"no source of version {notice.version} works: " + "; ".join(failures or ["none given"])
    )


async def request_broadcast(
    link: Link, name: str, request: BroadcastRequest, *, silence_s: float, overtaken: Overtaken
) -> BroadcastReply | None:
    """Return what the learner broadcasts from now on, None where it has that version no more or it
    is overtaken before an answer.

    WeightsUnavailableError where it does not answer."""
    with contextlib.closing(Dealer(link, name)) as dealer:
        await dealer.send(request)
        until, reply = time.monotonic() + silence_s, None
        while reply is None and time.monotonic() < until:
            if overtaken():  # A learner that died never answers, and the next one has announced.
                return None
            reply = await dealer.receive_within(_LOOK_S)
    if not isinstance(reply, BroadcastReply) or reply.version != request.version:
        raise WeightsUnavailableError(f"{link.address} does not answer for a broadcast")
    # The learner names its host as in its sources.
    reply = replace(reply, rendezvous=reply.rendezvous.replace("127.0.0.1:", f"{link.host}:"))
    return reply if reply.tensors else None


async def _download(notice: WeightNotice, folder: Path, dealer: Dealer, silence_s: float) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{notice.digest}.safetensors"
    part = path.with_suffix(".part")
    with contextlib.closing(dealer):
        if path.exists():
            with contextlib.suppress(WeightsUnavailableError):
                await _check(path, notice)
                return path
            path.unlink()  # A machine that lost power may have kept less than was written.
        # First, to have room. The newest complete ones stay, since others load them, or go back; on
        # a small disk fewer.
        complete = sorted(folder.glob("*.safetensors"), key=lambda file: file.stat().st_mtime)
        broken = (file for file in folder.glob("*.part") if file != part)
        for old in [*complete[:-KEPT_VERSIONS], *broken]:
            old.unlink()
        for old in complete[-KEPT_VERSIONS:-1]:
            if shutil.disk_usage(folder).free >= notice.num_bytes:
                break
            old.unlink()
        with part.open("ab") as file:
            async for data in _pieces(dealer, notice, file.tell(), silence_s):
                file.write(data)
    try:
        await _check(part, notice)
    except WeightsUnavailableError:
        part.unlink()
        raise
    times = [file.stat().st_mtime + 1 for file in complete[-1:]]
    newest = max([time.time(), *times])  # The clock may have been set back since the last came.
    os.utime(part, (newest, newest))
    return part.rename(path)


async def _pieces(
    dealer: Dealer, notice: WeightNotice, offset: int, silence_s: float
) -> AsyncIterator[bytes]:
    """Yield the bytes from `offset` on in pieces, whose size is that of the first."""
    size, asked, tries = 0, offset, 0
    while offset < notice.num_bytes:
        while asked < min(notice.num_bytes, offset + max(1, _AHEAD * size)):
            await dealer.send(WeightRequest(version=notice.version, offset=asked))
            asked += max(1, size)
        try:
            async with asyncio.timeout(silence_s / _ASKS):
                data = await _piece(dealer, notice.version, offset)
        except TimeoutError as error:
            asked, tries = offset, tries + 1
            if tries == _ASKS:
                text = f"silent for {silence_s:g} s at byte {offset}"
                raise WeightsUnavailableError(text) from error
            continue
        size, tries, offset = len(data), 0, offset + len(data)
        asked = max(asked, offset)
        if offset > notice.num_bytes:
            raise WeightsUnavailableError("more bytes arrive than were announced")
        yield data


async def _piece(dealer: Dealer, version: int, offset: int) -> bytes:
    """Return the bytes from `offset` on; ignore other answers."""
    while True:
        message = await dealer.receive()
        if isinstance(message, WeightBytes) and message.version == version:
            if not message.data:
                raise WeightsUnavailableError(f"version {version} is gone")
            if message.offset == offset:
                return message.data


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Read names and shapes of a safetensors file; ValueError where it is none."""
    try:
        with safe_open(path, framework="np") as file:
            names = file.keys()
            return {name: tuple(file.get_slice(name).get_shape()) for name in names}
    except SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from error


@dataclass(frozen=True)
class WeightLayout:
    """Names and shapes of a policy's weights. Tied names may be present or absent."""

    shapes: dict[str, tuple[int, ...]]
    tied: frozenset[str] = frozenset()

    def mismatch(self, path: Path) -> str | None:
        """Return the reason why a file does not fit, or None."""
        try:
            return self.difference(str(path), read_shapes(path))
        except (ValueError, OSError) as error:
            return str(error)

    def difference(self, source: str, found: Mapping[str, Sequence[int]]) -> str | None:
        """Return the reason why a source's shapes by name are not the policy's, or None."""
        missing = sorted(self.shapes.keys() - found.keys() - self.tied)
        unknown = sorted(found.keys() - self.shapes.keys() - self.tied)
        if missing:
            return f"{source} lacks {len(missing)} tensors, the first is {missing[0]}"
        if unknown:
            return f"{source} has {len(unknown)} unknown tensors, the first is {unknown[0]}"
        for name in found.keys() & self.shapes.keys():
            if (shape := tuple(found[name])) != self.shapes[name]:
                return f"{source}: {name} has shape {shape}, the policy's is {self.shapes[name]}"
        return None

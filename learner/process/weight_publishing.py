"""Publishing of weights: a safetensors file per version, served to other hosts.

A ranker that is trained along is published as folders that reward workers load.

In: named tensors and the version they have from now on. Out: a `WeightNotice` with a `file:` and a
`tcp://` source, and one for engines that take broadcasts. A thread writes the file, so that the
learner may train on meanwhile. Promises: an announced file is complete and never changes; the last
few versions stay; weights that are not finite never leave; where a disk has no room for a version
it waits, and where shared memory has none it raises, since nothing clears that; the folder is
removed when the publisher closes.
"""

import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from urllib.parse import urlsplit

import torch
from msgspec.structs import replace
from safetensors.torch import save_file
from torch import Tensor

from headrace.config.estimates.memory import KEPT_VERSIONS, wanted_shared_memory
from headrace.config.sections.process import TransportConfig
from headrace.errors import RunFailedError
from headrace.host.disk import until_written
from headrace.host.hardware import SHARED_MEMORY, own_address
from headrace.host.shared_memory import remove_weights, weights_name
from headrace.host.weight_group import WeightGroup, open_rendezvous
from headrace.protocol.messages.control import (
    BroadcastReply,
    BroadcastRequest,
    BroadcastTensor,
    ModelVersion,
    WeightBytes,
    WeightNotice,
    WeightRequest,
    weights_digest,
)
from headrace.protocol.transport.sockets import BlockingRouter, is_loopback
from headrace.run_files.run_folder import RANKERS
from learner.process.write_behind import Tell, WriteBehind
from learner.ranking.model import SessionRanker, digest_of

_LOG = logging.getLogger("headrace.learner")
PIECE_BYTES = 4 << 20
_POLL_S = 0.2
CLOSE_S = 5.0
SHORT_S = 0.05
"""A version or a checkpoint that is written in this time goes out with its update's report."""


class PublishingSchedule:
    """Schedule of publications, at least `interval_s` apart unless one is at once.

    `due_at`: when a version that was held back may go out (time.monotonic), None if none was."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s, self._next_at = interval_s, float("-inf")
        self.due_at: float | None = None

    def goes_out(self, may: bool, *, at_once: bool) -> bool:
        """Return whether to publish a version now, else let it wait. `may`: this rank may."""
        now = time.monotonic()
        if not may or (not at_once and now < self._next_at):
            self.due_at = self._next_at
            return False
        self.due_at, self._next_at = None, now + self._interval_s
        return True


class WeightPublisher(AbstractContextManager["WeightPublisher"]):
    """Writes weights and serves them until it is closed. `behind`: the version that is written."""

    def __init__(
        self,
        run_id: str,
        run_dir: Path,
        transport: TransportConfig,
        *,
        num_bytes: int,
        coordinator: str,
        tell: Tell = _LOG.warning,
        broadcasts: torch.device | None = None,
    ) -> None:
        """`num_bytes`: approximate size of a version, which decides on the folder. `broadcasts`:
        the device from which engines get versions as well; None: from files alone.

        `coordinator` is the coordinator's address; it determines the name of this host on that
        network. `tell` receives what the disk lacks, and an empty text when it goes on, in the
        thread that asks for what is `written`."""
        self._folder = _weights_folder(run_id, run_dir, num_bytes)
        self.behind = WriteBehind[WeightNotice]("publisher", tell)
        self._kept: list[int] = []
        host, target = "127.0.0.1", urlsplit(coordinator)
        if not is_loopback(transport.host):
            host = own_address(target.hostname or host, target.port or 1)
        self._server = _WeightServer(self._folder, transport, host, broadcasts)
        self._sources = [f"tcp://{host}:{self._server.port}"]
        if broadcasts is not None:
            backend = "nccl" if broadcasts.type == "cuda" else "gloo"
            self._sources.append(f"{backend}://{host}:{self._server.port}")

    def publish(self, weights: Mapping[str, Tensor], *, version: int, update: int) -> WeightNotice:
        """Write a version and wait for it. RunFailedError where shared memory has no room."""
        self.begin(weights, version=version, update=update)
        notice = self.behind.written(None)
        assert notice is not None
        return notice

    def begin(self, weights: Mapping[str, Tensor], *, version: int, update: int) -> None:
        """Begin to write a version; the tensors must stay as they are until it is `written`, and
        with broadcasts until `withdraw`."""
        self.behind.begin(lambda tell: self._write(weights, version, update, tell))

    def _write(
        self, weights: Mapping[str, Tensor], version: int, update: int, tell: Tell
    ) -> WeightNotice:
        path = _file_of(self._folder, version)
        partial = path.with_suffix(".partial")

        def attempt() -> None:
            try:
                save_file(dict(weights), partial, metadata={"format": "pt"})
            except Exception:
                partial.unlink(missing_ok=True)
                raise

        lacks = _refuse if self._folder.is_relative_to(SHARED_MEMORY) else tell
        until_written(attempt, self._folder, bytes_of(weights), tell=lacks)
        digest = weights_digest(partial)
        partial.rename(path)
        self._kept.append(version)
        while len(self._kept) > KEPT_VERSIONS:
            _file_of(self._folder, self._kept.pop(0)).unlink(missing_ok=True)
        self._server.offer(version, weights)
        return WeightNotice(
            version=version,
            update=update,
            digest=digest,
            num_bytes=path.stat().st_size,
            sources=[f"file:{path}", *self._sources],
        )

    def withdraw(self) -> None:
        """Broadcast the last version no more; wait until nobody reads its tensors."""
        self._server.offer(-1, {})

    def __exit__(self, *_error: object) -> None:
        self.behind.close(CLOSE_S)
        self._server.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class _WeightServer(threading.Thread):
    """Thread that answers WeightRequests with pieces of the files, on its own ROUTER, and
    BroadcastRequests one after the other."""

    def __init__(
        self, folder: Path, transport: TransportConfig, host: str, broadcasts: torch.device | None
    ) -> None:
        super().__init__(name="weights", daemon=True)
        self._folder, self._host, self._device = folder, host, broadcasts
        # Beside the coordinator this host has no name that others know it by.
        unnamed = is_loopback(host) and not is_loopback(transport.host)
        self._listens_on = "0.0.0.0" if unnamed else host
        self._piece = min(PIECE_BYTES, transport.max_bytes // 2)
        self._groups: dict[str, WeightGroup] = {}
        self._reading = threading.Lock()
        self._offered: tuple[int, Mapping[str, Tensor]] = (-1, {})
        self._end = threading.Event()
        self._router = BlockingRouter(
            transport.host, 0, max_bytes=transport.max_bytes, curve_keys=transport.curve_keys
        )
        self.port = self._router.port
        self.start()

    def run(self) -> None:
        """Serve until closed, with the router to itself."""
        router = self._router
        try:
            while not self._end.is_set():
                match router.receive(_POLL_S):
                    case (name, WeightRequest() as request):
                        router.send(name, _piece(self._folder, request, self._piece))
                    case (name, BroadcastRequest() as request) if self._device is not None:
                        with self._reading:
                            self._broadcast(router, name, request, self._device)
        finally:
            router.close()

    def offer(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """Broadcast these weights from now on, once the last ones are no longer being read."""
        with self._reading:
            self._offered = (version, weights if self._device is not None else {})

    def _broadcast(
        self, router: BlockingRouter, name: str, request: BroadcastRequest, device: torch.device
    ) -> None:
        version, weights = self._offered
        reply = BroadcastReply(version=request.version, tensors=[])
        if version != request.version:
            router.send(name, reply)
            return
        reply.tensors.extend(
            BroadcastTensor(key, str(tensor.dtype).removeprefix("torch."), list(tensor.shape))
            for key, tensor in weights.items()
        )
        group = self._groups.pop(name, None) if request.joined else None
        try:
            if group is None:
                store = open_rendezvous(self._listens_on)
                reply = replace(reply, rendezvous=f"{self._host}:{store.port}")
            if not router.send(name, reply):
                return
            group = group or WeightGroup(store, 0, request.workers + 1, device)
            for tensor in weights.values():
                group.send(tensor)
        except (OSError, RuntimeError) as error:
            _LOG.warning("version %d did not reach %s: %s", version, name, error)
        else:
            self._groups[name] = group
            _LOG.info("version %d reached %s by broadcast", version, name)

    def close(self) -> None:
        """End the thread."""
        self._end.set()
        self.join(timeout=CLOSE_S)


def _piece(folder: Path, request: WeightRequest, size: int) -> WeightBytes:
    try:
        with _file_of(folder, request.version).open("rb") as file:
            file.seek(max(0, request.offset))
            data = file.read(size)
    except FileNotFoundError:
        data = b""
    return WeightBytes(version=request.version, offset=request.offset, data=data)


def _file_of(folder: Path, version: int) -> Path:
    return folder / f"v{version}.safetensors"


def _weights_folder(run_id: str, run_dir: Path, num_bytes: int) -> Path:
    """Create the weights' folder, in shared memory if kept versions and one more fit."""
    if SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK):
        remove_weights(run_id, SHARED_MEMORY)
        needs, free = wanted_shared_memory(num_bytes), shutil.disk_usage(SHARED_MEMORY).free
        if free > needs:
            folder = SHARED_MEMORY / weights_name(run_id, os.getpid())
            folder.mkdir(mode=0o700)
            return folder
        room = f"{free >> 20} MiB are free in {SHARED_MEMORY}, {needs >> 20} MiB are wanted"
        _LOG.warning("weights go to %s: %s", run_dir / "weights", room)
    shutil.rmtree(run_dir / "weights", ignore_errors=True)
    (run_dir / "weights").mkdir(parents=True, exist_ok=True)  # NFS keeps what is open
    return Path(tempfile.mkdtemp(dir=run_dir / "weights"))


def _refuse(text: str) -> None:
    """Raise for a lack of room; this replaces `tell`, which also gets slow writes."""
    if text.startswith("room"):
        raise RunFailedError(f"publishing weights needs {text}; docker has --shm-size for it")


def _is_finite(tensor: Tensor) -> bool:
    """Return whether all is finite, by the extremes: one pass without a mask."""
    return not tensor.numel() or bool(torch.stack(tensor.aminmax()).isfinite().all())


def publish_ranker(
    ranker: SessionRanker, weights: Mapping[str, Tensor], run_dir: Path, *, version: int,
    keep: int, tell: Tell,
) -> ModelVersion:  # fmt: skip
    """Write a ranker under the version of its policy's weights; remove all but `keep`.

    Out: rankers/vN in the run's folder. An announced folder is complete and never changes.
    RunFailedError where a weight is not finite."""
    if not all(map(_is_finite, weights.values())):
        raise RunFailedError(f"a weight of the ranker is not finite in version {version}")
    root = run_dir / RANKERS
    root.mkdir(exist_ok=True)
    folder, partial = root / f"v{version}", root / f".v{version}.partial"

    def attempt() -> None:
        shutil.rmtree(partial, ignore_errors=True)
        ranker.save(partial, weights)

    until_written(attempt, root, bytes_of(weights), tell=tell)
    partial.rename(folder)
    versions = sorted(root.glob("v*"), key=lambda path: int(path.name[1:]))
    # A learner that was killed may have left one half-written.
    for old in [*versions[:-keep], *root.glob(".v*.partial")]:
        shutil.rmtree(old, ignore_errors=True)
    return ModelVersion(version=version, path=str(folder), digest=digest_of(folder))


def bytes_of(tensors: Mapping[str, Tensor]) -> int:
    """Return the bytes of tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def weights_of(
    state: Mapping[str, Tensor],
    *,
    dtype: torch.dtype | None,
    buffers: dict[str, Tensor] | None = None,
    update: int | None = None,
    copy: bool = False,
) -> dict[str, Tensor]:
    """Copy a state dict for safetensors: tied weights once, contiguous, on the CPU.

    Floating ones in `dtype` (None: as they are). `buffers`: memory of earlier calls, which is
    written again (page-locked for a GPU: 0.94 GiB from an H200 take 0.03 s, against 0.8 s into
    fresh memory); None: a tensor that is on the CPU already may be shared with the state, but not
    with `copy`.
    RunFailedError where a weight is not finite after `update`; None: nobody looks."""
    seen: set[tuple[int, int]] = set()
    weights: dict[str, Tensor] = {}
    on_gpu = False
    for name, tensor in state.items():
        place = (tensor.data_ptr(), tensor.numel())
        if place in seen:
            continue
        seen.add(place)
        tensor = tensor.detach()
        if update is not None and not _is_finite(tensor):
            raise RunFailedError(f"weight {name} is not finite after update {update}")
        wanted = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        if buffers is None:
            tensor = tensor.to(wanted).to("cpu", copy=copy).contiguous()
        else:
            on_gpu |= tensor.is_cuda
            if name not in buffers:
                made = torch.empty(tensor.shape, dtype=wanted, device="cpu", pin_memory=on_gpu)
                buffers[name] = made
            # A GPU changes the type before the transfer.
            source = tensor.to(wanted) if tensor.is_cuda else tensor
            tensor = buffers[name].copy_(source, non_blocking=True)
        weights[name] = tensor
    if on_gpu:
        torch.cuda.synchronize()
    return weights

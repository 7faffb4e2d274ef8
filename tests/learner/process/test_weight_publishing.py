"""What is announced can be had, and only finite weights are announced."""

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file

from headrace.config.estimates.memory import KEPT_VERSIONS
from headrace.config.sections.process import TransportConfig
from headrace.errors import RunFailedError
from headrace.host import disk
from headrace.host.hardware import free_port
from headrace.host.weight_group import WeightGroup, join_rendezvous
from headrace.protocol.messages.control import (
    BroadcastReply,
    BroadcastRequest,
    WeightBytes,
    WeightRequest,
    weights_digest,
)
from headrace.protocol.transport.curve import make_keys
from headrace.protocol.transport.sockets import BlockingDealer, Link
from learner.models.deepspeed_engine import join_ranks
from learner.process import weight_publishing
from learner.process.trainer import Trainer
from learner.process.weight_publishing import WeightPublisher, bytes_of, weights_of
from tests.learner.forked import finished
from tests.learner.recorded import run_config, save_tiny_model
from tests.small_disk import small_disk


def publisher(
    tmp_path: Path,
    *,
    num_bytes: int = 64,
    tell: Callable[[str], None] = print,
    broadcasts: torch.device | None = None,
    transport: TransportConfig | None = None,
) -> WeightPublisher:
    return WeightPublisher(
        tmp_path.name,
        tmp_path,
        transport or TransportConfig(),
        num_bytes=num_bytes,
        coordinator="tcp://127.0.0.1:1",
        tell=tell,
        broadcasts=broadcasts,
    )


def test_the_last_versions_stay_and_all_go_at_the_end(tmp_path: Path) -> None:
    with publisher(tmp_path) as weights:
        notices = [
            weights.publish({"w": torch.full((2,), float(v))}, version=v, update=v)
            for v in range(5)
        ]
        paths = [Path(n.sources[0].removeprefix("file:")) for n in notices]
        assert [p.exists() for p in paths] == [v >= 5 - KEPT_VERSIONS for v in range(5)]
        assert load_file(paths[4])["w"].tolist() == [4.0, 4.0]
    assert not paths[4].parent.exists()


def test_without_room_in_shared_memory_the_run_folder_is_used(tmp_path: Path) -> None:
    with publisher(tmp_path, num_bytes=1 << 60) as weights:
        notice = weights.publish({"w": torch.ones(1)}, version=0, update=0)
        assert Path(notice.sources[0].removeprefix("file:")).is_relative_to(tmp_path / "weights")


def test_files_that_nfs_keeps_for_their_readers_are_not_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weights" / "of-a-killed-learner").mkdir(parents=True)
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    with publisher(tmp_path, num_bytes=1 << 60) as weights:
        notice = weights.publish({"w": torch.ones(1)}, version=0, update=0)
        assert Path(notice.sources[0].removeprefix("file:")).is_file()


def test_a_small_shared_memory_is_left_alone_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Docker's own size, scaled down: it would hold one version, and not all that are kept."""
    with small_disk(tmp_path / "shm", "4m") as small:
        monkeypatch.setattr(weight_publishing, "SHARED_MEMORY", small.path)
        with publisher(tmp_path, num_bytes=1 << 20) as weights:
            notice = weights.publish({"w": torch.ones(1 << 18)}, version=0, update=0)
            assert Path(notice.sources[0].removeprefix("file:")).is_relative_to(
                tmp_path / "weights"
            )
    (line,) = caplog.messages
    room = f"4 MiB are free in {small.path}, 8 MiB are wanted"
    assert line == f"weights go to {tmp_path / 'weights'}: {room}"


def test_shared_memory_that_others_fill_ends_the_run_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would clear it: a wait would have no end."""
    with small_disk(tmp_path / "shm", "4m") as small:
        monkeypatch.setattr(weight_publishing, "SHARED_MEMORY", small.path)
        with publisher(tmp_path, num_bytes=64) as weights:
            weights.publish({"w": torch.ones(16)}, version=0, update=0)
            small.fill()
            room = "room for 400,000 bytes in .*/shm/headrace-.*, and 0 are free; docker has"
            with pytest.raises(RunFailedError, match=f"publishing weights needs {room}"):
                weights.publish({"w": torch.ones(100_000)}, version=1, update=1)


def test_a_version_waits_for_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions announced before stay as they are meanwhile."""
    monkeypatch.setattr(disk, "RETRY_S", 0.01)
    told: list[str] = []
    with small_disk(tmp_path / "disk", "2m") as small:
        with publisher(small.path, num_bytes=1 << 60, tell=told.append) as weights:
            first = weights.publish({"w": torch.ones(100_000)}, version=0, update=0)
            path = Path(first.sources[0].removeprefix("file:"))
            small.fill()

            def later() -> None:
                while not told:
                    time.sleep(0.01)
                time.sleep(0.1)
                assert [p.name for p in path.parent.iterdir()] == [path.name]
                small.free()

            thread = threading.Thread(target=later)
            thread.start()
            second = weights.publish({"w": torch.zeros(100_000)}, version=1, update=1)
            thread.join()
            assert load_file(path)["w"].sum() == 100_000
            assert load_file(second.sources[0].removeprefix("file:"))["w"].sum() == 0
        assert told == [f"room for 400,000 bytes in {path.parent}, and 0 are free", ""]


def test_a_version_is_written_while_its_owner_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may, digest = threading.Event(), weights_digest
    monkeypatch.setattr(
        weight_publishing, "weights_digest", lambda path: may.wait() and digest(path)
    )
    with publisher(tmp_path) as weights:
        weights.begin({"w": torch.ones(2)}, version=1, update=1)
        assert weights.behind.written() is None
        assert weights.behind.is_writing
        may.set()
        notices = [weights.behind.written(None) for _ in range(2)]
        assert [notice and notice.version for notice in notices] == [1, None], "it is given once"


def test_tensors_may_change_once_a_broadcast_is_withdrawn(tmp_path: Path) -> None:
    """A slow reader gets the version it asked for, whole; a later one gets none."""
    tensors = {name: torch.full((1 << 20,), 7.0) for name in "abc"}
    with publisher(tmp_path, broadcasts=torch.device("cpu")) as weights:
        source = weights.publish(tensors, version=0, update=0).sources[-1]
        dealer = BlockingDealer(Link(source.replace("gloo:", "tcp:")), "generator-0")

        def ask() -> BroadcastReply:
            dealer.send(BroadcastRequest(version=0, workers=1, joined=False))
            reply = dealer.receive(10.0)
            assert isinstance(reply, BroadcastReply)
            return reply

        def withdraw() -> None:
            weights.withdraw()
            for tensor in tensors.values():
                tensor.zero_()

        reply = ask()
        group = WeightGroup(join_rendezvous(reply.rendezvous), 1, 2, torch.device("cpu"))
        withdrawing = threading.Thread(target=withdraw)
        withdrawing.start()
        for tensor in reply.tensors:
            time.sleep(0.2)
            assert (tensor.dtype, tensor.shape) == ("float32", [1 << 20])
            assert bool((group.receive(torch.float32, tensor.shape) == 7.0).all())
        withdrawing.join()
        assert [ask().tensors for _ in range(2)] == [[], []]
        dealer.close()


def test_pieces_are_served_where_no_group_can_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(host: str) -> None:
        raise OSError(f"{host} is not an address of this host")

    monkeypatch.setattr(weight_publishing, "open_rendezvous", refuse)
    with publisher(tmp_path, broadcasts=torch.device("cpu")) as weights:
        source = weights.publish({"w": torch.ones(1)}, version=0, update=0).sources[-1]
        dealer = BlockingDealer(Link(source.replace("gloo:", "tcp:")), "generator-0")
        dealer.send(BroadcastRequest(version=0, workers=1, joined=False))
        dealer.send(WeightRequest(version=0, offset=0))
        assert isinstance(dealer.receive(10.0), WeightBytes)
        dealer.close()


def test_generators_of_other_hosts_reach_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside its coordinator a learner knows no other name of its host than the loopback's."""
    keys, hosts = str(tmp_path / "keys"), list[str]()
    make_keys(Path(keys))

    def refuse(host: str) -> None:
        hosts.append(host)
        raise OSError("it is seen where it would listen")

    monkeypatch.setattr(weight_publishing, "open_rendezvous", refuse)
    transport = TransportConfig(host="0.0.0.0", curve_keys=keys)
    with publisher(tmp_path, broadcasts=torch.device("cpu"), transport=transport) as weights:
        source = weights.publish({"w": torch.ones(1)}, version=0, update=0).sources[-1]
        link = Link(source.replace("gloo:", "tcp:"), curve_keys=keys)
        dealer = BlockingDealer(link, "generator-0")
        dealer.send(BroadcastRequest(version=0, workers=1, joined=False))
        dealer.send(WeightRequest(version=0, offset=0))
        assert isinstance(dealer.receive(10.0), WeightBytes)
        dealer.close()
    assert hosts == ["0.0.0.0"]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_weights_that_are_not_finite_never_leave(bad: float) -> None:
    with pytest.raises(RunFailedError, match="weight w is not finite after update 2"):
        weights_of({"v": torch.ones(2), "w": torch.tensor([1.0, bad])}, dtype=None, update=2)


def test_copies_are_their_own_and_written_again() -> None:
    trained, buffers = {"w": torch.ones(2)}, dict[str, torch.Tensor]()
    copied = weights_of(trained, dtype=torch.bfloat16, buffers=buffers)
    trained["w"].mul_(3)
    assert copied["w"].tolist() == [1.0, 1.0]
    again = weights_of(trained, dtype=torch.bfloat16, buffers=buffers)
    assert again["w"].tolist() == [3.0, 3.0]
    assert again["w"].data_ptr() == copied["w"].data_ptr()


def test_tied_weights_go_once_and_in_the_wanted_precision() -> None:
    tied = torch.ones(3)
    found = weights_of({"a": tied, "b": tied, "n": torch.arange(2)}, dtype=torch.bfloat16)
    assert {name: t.dtype for name, t in found.items()} == {"a": torch.bfloat16, "n": torch.int64}


def sizes_of_an_adapter(model: Path, run_dir: Path, port: int) -> None:
    """Print the size that a version is taken to have, and its own."""
    cpu = torch.device("cpu")
    join_ranks(rank=0, world_size=1, port=port, device=cpu)
    config = run_config(model, lora={"rank": 2, "publish": "adapter"})
    models = Trainer(config, run_dir, rank=0, device=cpu).models
    print(models.policy_bytes, bytes_of(models.published_weights(0)))


def test_an_adapter_that_goes_alone_asks_for_its_own_room(tmp_path: Path) -> None:
    """Not for that of the model that it belongs to, which shared memory may not have."""
    model, log = save_tiny_model(tmp_path / "model"), tmp_path / "log"
    said = finished(sizes_of_an_adapter, model, tmp_path / "run", free_port(), log=log)
    taken, own = said.splitlines()[-1].split()
    assert taken == own


def memory_of_a_copy(model: Path, run_dir: Path, port: int) -> None:
    """Print of each model whether a checkpoint's copy shares weights, and any that trains."""
    cpu = torch.device("cpu")
    join_ranks(rank=0, world_size=1, port=port, device=cpu)
    models = Trainer(run_config(model, lora={"rank": 2}), run_dir, rank=0, device=cpu).models
    for name, copied in models.whole().items():
        held = {p.data_ptr(): p.requires_grad for p in models.networks[name].parameters()}
        shared = [held[at] for x in copied.weights.values() if (at := x.data_ptr()) in held]
        print(name, bool(shared), any(shared))


def test_what_adapters_leave_as_it_is_is_not_copied(tmp_path: Path) -> None:
    """Merged weights are copies already: a second one of them took the host a model more."""
    model, log = save_tiny_model(tmp_path / "model"), tmp_path / "log"
    said = finished(memory_of_a_copy, model, tmp_path / "run", free_port(), log=log)
    assert said.splitlines()[-2:] == ["policy True False", "critic True False"]


def order_of_a_publication(model: Path, run_dir: Path, port: int) -> None:
    cpu, calls = torch.device("cpu"), Mock()
    join_ranks(rank=0, world_size=1, port=port, device=cpu)
    calls.relay.least.side_effect = int
    calls.publication.goes_out.return_value = False
    trainer = Trainer(run_config(model), run_dir, rank=0, device=cpu, relay=calls.relay)
    trainer.models, trainer.publication = calls.models, calls.publication
    calls.reset_mock()
    trainer.publish(calls.publisher, at_once=False)
    print(*(name for name, *_ in calls.mock_calls[:4]))


def test_ranks_gather_weights_once_the_last_version_is_written(tmp_path: Path) -> None:
    """Where its disk is full that takes longer than a rank waits inside a gather of ZeRO 3."""
    model, log = save_tiny_model(tmp_path / "model"), tmp_path / "log"
    said = finished(order_of_a_publication, model, tmp_path / "run", free_port(), log=log)
    order = "publisher.behind.written publisher.withdraw relay.least models.published_weights"
    assert said.splitlines()[-1] == order

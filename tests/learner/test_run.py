"""`python -m learner.run` against a scripted coordinator over real sockets."""

import json
import signal
import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import xxhash
from msgspec.structs import replace
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, AutoTokenizer

import learner.run
from headrace.config.sections.run import RunConfig
from headrace.host import disk
from headrace.host.progress_reporter import ProgressReporter
from headrace.protocol.messages.batches import Shard
from headrace.protocol.messages.control import (
    AskHello,
    CheckpointDone,
    CheckpointRequest,
    Goodbye,
    Hello,
    JournalEnd,
    Message,
    Progress,
    Restore,
    Shutdown,
    Trouble,
    UpdateDone,
    WeightBytes,
    WeightNotice,
    WeightRequest,
    Welcome,
    weights_digest,
)
from headrace.protocol.messages.diagnostics import COLUMN_NAMES
from headrace.protocol.token_spans import Reward
from headrace.protocol.transport.sockets import BlockingDealer, Link
from headrace.run_files.update_log import read_applied
from learner.process import checkpointing, trainer, weight_publishing
from learner.process.model_set import ModelSet
from tests.learner.models.families import save_family
from tests.learner.recorded import (
    Sent,
    alone,
    batch_of,
    record,
    run_config,
    save_tiny_model,
    streamed,
)
from tests.learner.scripted_coordinator import ScriptedCoordinator
from tests.metric_values import number


def welcome(hello: Hello, version: int, lineage: int) -> Welcome:
    return Welcome(
        run_id="run",
        run_dir="",
        config="",
        publish_as=version,
        lineage=lineage,
        greeting=hello.greeting,
    )


def greet(
    coordinator: ScriptedCoordinator, version: int, lineage: int = 0
) -> tuple[Hello, WeightNotice]:
    hello = coordinator.expect(Hello)
    coordinator.send(welcome(hello, version, lineage))
    return hello, coordinator.expect(WeightNotice)


def noticed(coordinator: ScriptedCoordinator) -> WeightNotice:
    """The notice of weights in the next report of an update."""
    notice = coordinator.expect(UpdateDone).notice
    assert notice is not None
    return notice


def resting_on(sent: Sent, end: JournalEnd) -> Sent:
    """The batch with what the journal had of it."""
    return sent._replace(batch=replace(sent.batch, journal=end))


def manifest_of(run_dir: Path) -> dict[str, Any]:
    """That of the checkpoint of update 4."""
    path = run_dir / "checkpoints" / "step_4" / "manifest.json"
    manifest: dict[str, Any] = json.loads(path.read_text())
    return manifest


def file_of(notice: WeightNotice) -> Path:
    return Path(notice.sources[0].removeprefix("file:"))


@pytest.mark.slow
def test_a_whole_life(tmp_path: Path) -> None:
    """Greeting, updates, weights by file and by socket, a checkpoint, the end."""
    config = run_config(save_tiny_model(tmp_path / "model"))
    run_dir = tmp_path / "run-1"
    with ScriptedCoordinator(config, run_dir) as coordinator:
        coordinator.start_learner()
        hello, first = greet(coordinator, 0, lineage=4)
        assert (hello.update, hello.batch_id, hello.resumed_from) == (0, None, None)
        assert first.version == 0
        start = load_file(file_of(first))
        original = AutoModelForCausalLM.from_pretrained(tmp_path / "model").state_dict()
        assert all(torch.equal(start[name], original[name]) for name in start)
        assert "lm_head.weight" not in start

        shard = record(seed=1)
        windows = shard.windows
        coordinator.send_batch(batch_of(shard, update=1, lineage=4, version=0, parts=3))
        done = coordinator.expect(UpdateDone)
        assert (done.update, done.lineage, done.batch_id) == (1, 4, 4001)
        assert done.skipped is None
        assert done.notice is not None
        assert done.notice.version == 1
        assert sorted(d.window_id for d in done.diagnostics) == [w.window_id for w in windows]
        for found in done.diagnostics:
            window = windows[found.window_id]
            assert tuple(found.columns) == COLUMN_NAMES
            assert found.columns["advantages"].size == window.end - window.start
            assert np.isfinite(found.columns["values"]).all()
            assert np.isfinite(found.columns["returns"]).all() == window.finished
        assert done.metrics["actor/steps"] == 2
        assert done.metrics["perf/loss_tokens"] == sum(
            int((w.loss_weights > 0).sum()) for w in windows
        )
        data = file_of(done.notice).read_bytes()
        assert xxhash.xxh3_128(data).hexdigest() == done.notice.digest
        assert len(data) == done.notice.num_bytes
        assert fetched(done.notice) == data

        # A value batch alone publishes nothing; a policy batch alone leaves the critic.
        warm_up = replace(shard, windows=[])
        coordinator.send_batch(batch_of(warm_up, update=2, lineage=4, version=1, value_epochs=2))
        alone = coordinator.expect(UpdateDone)
        assert (alone.notice, alone.metrics["critic/steps"]) == (None, 4)
        # What is not finite, in either half, publishes nothing.
        infinite = replace(shard.values[0], rewards=[Reward(float("inf"), 0)])
        bad = replace(shard, values=[infinite, *shard.values[1:]])
        coordinator.send_batch(batch_of(bad, update=3, lineage=4, version=1))
        broken = coordinator.expect(UpdateDone)
        assert broken.notice is None
        assert "value targets" in str(broken.skipped)
        assert (broken.metrics["actor/steps"], broken.metrics["critic/steps"]) == (0, 0)
        coordinator.send(AskHello())  # As of a coordinator that never got this report.
        hello, _ = greet(coordinator, 5, lineage=4)
        assert (hello.update, hello.batch_id, hello.skipped) == (3, 4003, broken.skipped)
        alone_again = replace(shard, values=[])
        coordinator.send_batch(
            resting_on(
                batch_of(alone_again, update=4, lineage=4, version=5, checkpoint=True),
                JournalEnd(records=7, digest="a" * 64),
            )
        )
        last = coordinator.expect(UpdateDone)
        assert last.notice is not None
        assert last.checkpoint == str(run_dir / "checkpoints" / "step_4")
        assert manifest_of(run_dir)["journal"] == {"records": 7, "digest": "a" * 64}
        assert "critic/grad_norm" not in last.metrics

        end = JournalEnd(records=9, digest="b" * 64)
        coordinator.send(CheckpointRequest(update=4, lineage=4, journal=end))
        path = Path(coordinator.expect(CheckpointDone).path)
        assert (run_dir / "checkpoints" / "latest").read_text().strip() == path.name
        manifest = manifest_of(run_dir)
        assert manifest["journal"] == {"records": 9, "digest": "b" * 64}
        assert (manifest["update"], manifest["lineage"], manifest["format"]) == (4, 4, 3)
        assert (manifest["batch_id"], manifest["skipped"]) == (4004, None)
        assert not (path / "state" / "cut.json").exists()
        published = load_file(file_of(last.notice))
        policy = AutoModelForCausalLM.from_pretrained(path / "policy").state_dict()
        assert all(torch.equal(published[name], policy[name]) for name in published)
        critic = AutoModelForTokenClassification.from_pretrained(path / "critic")
        assert critic.score.weight.abs().sum() > 0
        assert AutoTokenizer.from_pretrained(path / "policy").eos_token_id == 2

        coordinator.send(Shutdown(reason="done"))
        assert coordinator.expect(Goodbye).failed is None
        assert coordinator.wait() == [0]
        assert coordinator.heartbeats
        assert not file_of(last.notice).parent.exists()


def fetched(notice: WeightNotice) -> bytes:
    """The file by the learner's own socket."""
    dealer = BlockingDealer(Link(notice.sources[1]), "generator-0")
    data = b""
    try:
        while len(data) < notice.num_bytes:
            dealer.send(WeightRequest(version=notice.version, offset=len(data)))
            piece = dealer.receive(10.0)
            assert isinstance(piece, WeightBytes)
            assert piece.offset == len(data)
            assert piece.data
            data += piece.data
        dealer.send(WeightRequest(version=notice.version + 99, offset=0))
        gone = dealer.receive(10.0)
        assert isinstance(gone, WeightBytes)
        assert gone.data == b""
    finally:
        dealer.close()
    return data


def unrelated() -> list[Shard]:
    return [record(seed=10 + update) for update in range(1, 5)]


def in_a_stream() -> list[Shard]:
    """Windows of the same answers, update after update."""
    whole = record(seed=10, trajectories=24, window=8)
    return streamed(whole, updates=4, rng=np.random.default_rng(0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("learner", "value", "shards"),
    [
        ({}, None, unrelated()),
        ({"context": "carried"}, None, in_a_stream()),
        ({}, {"fit": "least_squares"}, unrelated()),
        ({"lora": {"rank": 2}}, None, unrelated()),
        ({"lora": {"rank": 2}}, {"fit": "least_squares"}, unrelated()),
    ],
    ids=["full", "carried", "fitted", "adapters", "fitted beside adapters"],
)
def test_restart_goes_on_to_the_bit(
    tmp_path: Path,
    learner: dict[str, object],
    value: dict[str, object] | None,
    shards: list[Shard],
) -> None:
    """Killed after a checkpoint and asked to end later: the same weights as without, though it was
    written while later updates were trained. Keys that were carried over are dropped at a
    checkpoint, so that nobody goes on with more than the others."""
    config = run_config(save_tiny_model(tmp_path / "model"), value=value, **learner)
    batches = [
        batch_of(shard, update=u, version=u - 1, checkpoint=u == 2)
        for u, shard in enumerate(shards, start=1)
    ]
    with ScriptedCoordinator(config, tmp_path / "run-2") as coordinator:
        coordinator.start_learner(main=learner_whose_checkpoints_wait)
        greet(coordinator, 0)
        notices, hits = [], []
        for batch in batches:
            coordinator.send_batch(batch)
            done = coordinator.expect(UpdateDone)
            assert done.checkpoint is None
            notices.append(done.notice or coordinator.expect(WeightNotice))
            hits.append(done.metrics.get("perf/carried_hits"))
        assert not list((tmp_path / "run-2" / "checkpoints").glob("step_*"))
        (coordinator.run_dir / "gate").touch()
        assert coordinator.expect(CheckpointDone).update == 2
        if "context" in learner:
            assert [bool(count) for count in hits] == [False, True, False, True]
        if value is not None:
            critic = tmp_path / "run-2" / "checkpoints" / "step_2" / "critic"
            assert AutoModelForTokenClassification.from_pretrained(critic).score.weight.eq(0).all()
            assert load_file(critic / "value_head.safetensors")["offset"] > 0
        if "lora" in learner:
            policy = tmp_path / "run-2" / "checkpoints" / "step_2" / "policy"
            merged = AutoModelForCausalLM.from_pretrained(policy).state_dict()
            published = load_file(file_of(notices[1]))
            assert all(torch.equal(merged[name], published[name]) for name in published)
            adapted = PeftModel.from_pretrained(
                AutoModelForCausalLM.from_pretrained(tmp_path / "model"), policy / "adapter"
            ).merge_and_unload()
            torch.testing.assert_close(adapted.state_dict(), merged, atol=1e-5, rtol=0)
        coordinator.processes[0].send_signal(signal.SIGKILL)
        coordinator.processes[0].wait()

        coordinator.start_learner()
        hello, again = greet(coordinator, 9)
        assert hello.update == 2
        assert hello.resumed_from == str(tmp_path / "run-2" / "checkpoints" / "step_2")
        assert (again.digest, again.version) == (notices[1].digest, 9)
        for batch, before in zip(batches[2:], notices[2:], strict=True):
            coordinator.send_batch(batch)
            assert noticed(coordinator).digest == before.digest
        coordinator.processes[0].send_signal(signal.SIGTERM)
        assert coordinator.expect(Goodbye).failed is None
        assert coordinator.wait() == [143]


@pytest.mark.slow
def test_nothing_but_the_next_update_of_its_lineage_is_trained(tmp_path: Path) -> None:
    """An update that was trained already, a lineage that is not its own, what was sent before its
    Hello was answered: refused, with a Hello, and the weights stay. Told to go back, it goes on
    with the newest checkpoint on the line, to the bit, and the one that is not on it goes. What was
    trained is written down, and nothing else."""
    config = run_config(save_tiny_model(tmp_path / "model"))
    run_dir = tmp_path / "run-6"
    shard = record(seed=1)
    with ScriptedCoordinator(config, run_dir) as coordinator:
        coordinator.start_learner()
        hello = coordinator.expect(Hello)
        coordinator.send_batch(batch_of(shard, update=1, version=0))  # It awaits its Welcome.
        coordinator.send(welcome(hello, 0, 0))
        coordinator.expect(WeightNotice)
        coordinator.send_batch(batch_of(shard, update=1, version=0, checkpoint=True))
        first = coordinator.expect(UpdateDone)
        assert first.notice is not None
        weights = first.notice.digest
        wrong = (
            batch_of(shard, update=1, version=1),
            batch_of(shard, update=3, version=1),
            batch_of(shard, update=2, lineage=1, version=1),
        )
        for version, sent in enumerate(wrong, start=11):
            coordinator.send_batch(sent)
            hello = coordinator.expect(Hello)
            assert (hello.update, hello.batch_id) == (1, 1)
            coordinator.send(welcome(hello, version, 0))
            assert coordinator.expect(WeightNotice).digest == weights
        for update in (2, 3):
            sent = batch_of(shard, update=update, version=20 + update, checkpoint=True)
            coordinator.send_batch(sent)
            coordinator.expect(UpdateDone)

        coordinator.send(Restore(reason="a test", line=[(0, None), (1, 1), (2, 77)]))
        hello = coordinator.expect(Hello)
        assert (hello.update, hello.batch_id) == (0, None), "step_1 was forgotten"
        coordinator.send(welcome(hello, 31, 1))
        coordinator.expect(WeightNotice)
        coordinator.send_batch(batch_of(shard, update=1, lineage=1, version=40, checkpoint=True))
        again = coordinator.expect(UpdateDone)
        assert again.notice is not None
        assert again.notice.digest == weights
        folders = sorted(path.name for path in (run_dir / "checkpoints").glob("step_*"))
        assert folders == ["step_1"], "those of the lineage that was given up are gone"

        coordinator.send(Restore(reason="a test", line=[(1, 1001), (2, 1002)]))
        hello = coordinator.expect(Hello)
        assert (hello.update, hello.batch_id) == (1, 1001)
        assert hello.resumed_from == str(run_dir / "checkpoints" / "step_1")
        coordinator.send(welcome(hello, 51, 2))
        assert coordinator.expect(WeightNotice).digest == weights
        coordinator.send(Restore(reason="a test", line=[(2, 1002)]))
        assert "can be gone back to" in str(coordinator.expect(Goodbye).failed)
        assert coordinator.wait() == [2]
    lines = [line for _, line in read_applied(run_dir)]
    assert [(line.lineage, line.batch_id, line.after) for line in lines] == [
        (0, 1, None), (0, 2, 1), (0, 3, 2), (1, 1001, None),
    ]  # fmt: skip
    windows = sorted(window.window_id for window in shard.windows)
    assert all(sorted(line.windows) == windows for line in lines)


@pytest.mark.slow
def test_a_damaged_checkpoint_is_passed_over_with_a_word_and_the_last_one_is_not(
    tmp_path: Path,
) -> None:
    config = run_config(save_tiny_model(tmp_path / "model"))
    run_dir = tmp_path / "run-5"
    with ScriptedCoordinator(config, run_dir) as coordinator:
        coordinator.start_learner()
        greet(coordinator, 0)
        for update in (1, 2):
            batch = batch_of(
                record(seed=update), update=update, version=update - 1, checkpoint=True
            )
            coordinator.send_batch(batch)
            coordinator.expect(UpdateDone)
        coordinator.processes[0].send_signal(signal.SIGKILL)
        coordinator.processes[0].wait()
        (run_dir / "checkpoints" / "step_2" / "policy" / "model.safetensors").write_bytes(b"half")
        coordinator.start_learner()
        hello, _ = greet(coordinator, 9)
        assert hello.update == 1
        trouble = coordinator.expect(Trouble)
        assert (trouble.kind, trouble.waits) == ("checkpoint_skipped", False)
        assert "checkpoint step_2 was passed over: policy/model.safetensors" in trouble.text
        coordinator.processes[0].send_signal(signal.SIGKILL)
        coordinator.processes[0].wait()
        (run_dir / "checkpoints" / "step_1" / "manifest.json").unlink()
        coordinator.start_learner()
        assert coordinator.wait() == [2]
    last = (run_dir / "learner-0.log").read_text().rstrip().splitlines()[-1]
    assert last.startswith(f"error: none of the checkpoints in {run_dir / 'checkpoints'} is whole")


@pytest.mark.slow
@pytest.mark.parametrize("lora", [None, {"rank": 4}], ids=["weights", "adapters"])
def test_the_reference_stays_the_starting_policy(
    tmp_path: Path, lora: dict[str, int] | None
) -> None:
    """Critic-free with a divergence: 0 before the first step, and the same after a restart from a
    checkpoint, which is another policy."""
    table = run_config(save_tiny_model(tmp_path / "model"), lora=lora).model_dump(mode="json")
    table["algorithm"] = {
        "advantages": {"kind": "group", "baseline": "none", "scale": "none"},
        "kl": {"coef": 0.1},
    }
    config = RunConfig.model_validate(table)
    shard = alone(replace(record(seed=1), values=[]))
    with ScriptedCoordinator(config, tmp_path / "run-4") as coordinator:
        coordinator.start_learner()
        greet(coordinator, 0)
        coordinator.send_batch(batch_of(shard, update=1, version=0, checkpoint=True))
        first = coordinator.expect(UpdateDone)
        coordinator.send_batch(batch_of(shard, update=2, version=1))
        second = coordinator.expect(UpdateDone)
        assert first.skipped is second.skipped is None
        kl = [number(done.metrics["actor/reference_kl"]) for done in (first, second)]
        assert kl[1] > 10 * kl[0] >= 0.0
        assert not any(name.startswith("critic/v") for name in first.metrics)
        coordinator.processes[0].send_signal(signal.SIGKILL)
        coordinator.processes[0].wait()

        coordinator.start_learner()
        greet(coordinator, 9)
        coordinator.send_batch(batch_of(shard, update=2, version=9))
        again = coordinator.expect(UpdateDone)
        assert again.metrics["actor/reference_kl"] == pytest.approx(kl[1], rel=1e-5)
        coordinator.send(Shutdown(reason="done"))
        coordinator.expect(Goodbye)
        assert coordinator.wait() == [0]


@pytest.mark.slow
def test_a_student_goes_to_its_teacher(tmp_path: Path) -> None:
    """Without a surrogate the divergence from the teacher is all that trains."""
    teacher = save_tiny_model(tmp_path / "teacher", seed=5, num_hidden_layers=1)
    table = run_config(save_tiny_model(tmp_path / "model")).model_dump(mode="json")
    table["algorithm"] = {
        "advantages": {"kind": "group", "baseline": "none", "scale": "none"},
        "policy_loss": {"kind": "none"},
        "kl": {"coef": 1.0, "estimator": "k1+", "reference_path": str(teacher)},
    }
    shard = alone(replace(record(seed=1), values=[]))
    with ScriptedCoordinator(RunConfig.model_validate(table), tmp_path / "run-9") as coordinator:
        coordinator.start_learner()
        greet(coordinator, 0)
        kl = []
        for update in range(1, 7):
            coordinator.send_batch(batch_of(shard, update=update, version=update - 1))
            done = coordinator.expect(UpdateDone)
            kl.append(number(done.metrics["actor/reference_kl"]))
        assert kl[-1] < 0.7 * kl[0]
        assert all(later < earlier for earlier, later in pairwise(kl))
        coordinator.send(Shutdown(reason="done"))
        coordinator.expect(Goodbye)
        assert coordinator.wait() == [0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "critic", "told"),
    [
        # In a row that it shares an answer would begin in the state of the one before it.
        ("llama", "lfm2", "critic: its layers have a state, and the policy's have none"),
        # Of a policy whose answers have rows of their own the value model is tried, too.
        ("lfm2", "stablelm", "stablelm models cannot be trained here"),
    ],
)
def test_a_value_model_that_would_be_wrong_beside_the_policy_is_refused(
    tmp_path: Path, policy: str, critic: str, told: str
) -> None:
    folder = save_tiny_model(tmp_path / "model")
    if policy != "llama":
        save_family(policy, folder)  # beside its tokenizer
    table = run_config(folder).model_dump(mode="json")
    table["model"]["critic_path"] = str(save_family(critic, tmp_path / "critic"))
    with ScriptedCoordinator(RunConfig.model_validate(table), tmp_path / "run-11") as coordinator:
        coordinator.start_learner()
        assert coordinator.wait() == [2]
        said = (coordinator.run_dir / "learner-0.log").read_text()
    assert told in said


def test_what_a_disk_lacks_is_told_and_stays_in_the_progress() -> None:
    """So that a coordinator hears of it that takes over while no Hello can be said."""
    sent, work = list[Message](), ProgressReporter()
    inbox: Any = SimpleNamespace(send=sent.append)
    tell = learner.run._disk_reporter(inbox, work)
    tell("room for 9 bytes")
    assert sent == [Trouble(kind="disk", text="room for 9 bytes", waits=True)]
    assert work.news() == Progress(stage="waiting 0 s for room for 9 bytes")
    tell("")
    assert work.news() == Progress(stage="")


def learner_behind_a_gate(argv: list[str]) -> int:
    """A learner that writes no version to its end before there is a file `gate` in its folder."""
    gate, digest = Path(argv[1]) / "gate", weights_digest

    def gated(path: Path) -> str:
        while not gate.exists():
            time.sleep(0.01)
        return digest(path)

    patch.object(trainer, "SHORT_S", 0.0).start()
    patch.object(weight_publishing, "weights_digest", gated).start()
    return learner.run.main(argv)


def learner_whose_checkpoints_wait(argv: list[str]) -> int:
    """A learner that writes checkpoints, optimizers included, only once there is a file `gate`."""
    gate = Path(argv[argv.index("--run-dir") + 1]) / "gate"

    def gated(*args: Any) -> None:
        while not gate.exists():
            time.sleep(0.02)
        shelve(*args)

    shelve = checkpointing._shelve
    patch.object(checkpointing, "_shelve", gated).start()
    return learner.run.main(argv)


@pytest.mark.slow
def test_the_next_update_trains_while_a_version_is_written(tmp_path: Path) -> None:
    """Its notice comes behind the report of its update, its file is of that update, and the next
    version waits for it."""
    config = run_config(save_tiny_model(tmp_path / "model"))
    with ScriptedCoordinator(config, tmp_path / "run-1") as coordinator:
        gate = coordinator.run_dir / "gate"
        gate.touch()
        coordinator.start_learner(main=learner_behind_a_gate)
        greet(coordinator, 0)
        gate.unlink()
        coordinator.send_batch(batch_of(record(seed=1), update=1, version=0, checkpoint=True))
        first = coordinator.expect(UpdateDone)
        assert (first.notice, first.follows) == (None, 1)
        path = first.checkpoint or coordinator.expect(CheckpointDone).path
        coordinator.send_batch(batch_of(record(seed=2), update=2, version=1))
        coordinator.until_stage("publishing version 2")  # the second update is in its weights
        gate.touch()
        late = coordinator.expect(WeightNotice)
        assert (late.version, late.update) == (1, 1)
        second = coordinator.expect(UpdateDone)
        assert (second.notice, second.follows) == (None, 2)
        assert coordinator.expect(WeightNotice).version == 2
        saved = load_file(Path(path) / "policy" / "model.safetensors")
        for name, tensor in load_file(file_of(late)).items():
            assert torch.equal(tensor, saved[name]), name
        coordinator.send(Shutdown(reason="done"))
        coordinator.expect(Goodbye)
        assert coordinator.wait() == [0]


@pytest.mark.slow
def test_two_ranks_publish_the_weights_of_one(tmp_path: Path) -> None:
    """Rank 0 shares what it hears; both ranks' diagnostics come back."""
    model = save_tiny_model(tmp_path / "model")
    shard = record(seed=3)
    windows = shard.windows
    found = {}
    for ranks in (1, 2):
        config = run_config(model, ranks=ranks, zero_stage=2)
        with ScriptedCoordinator(config, tmp_path / f"run-3{ranks}") as coordinator:
            coordinator.start_learner(ranks)
            greet(coordinator, 0)
            for update in (1, 2):
                coordinator.send_batch(
                    batch_of(
                        shard, update=update, version=0, ranks=ranks, parts=update,
                        checkpoint=update == 2,
                    )
                )  # fmt: skip
                done = coordinator.expect(UpdateDone)
            assert done.notice is not None
            assert done.checkpoint is not None
            assert len(list(Path(done.checkpoint).glob("state/policy-*.safetensors"))) == ranks
            found[ranks] = load_file(file_of(done.notice))
            assert sorted(d.window_id for d in done.diagnostics) == [w.window_id for w in windows]
            coordinator.send(CheckpointRequest(update=2, lineage=0))
            path = Path(coordinator.expect(CheckpointDone).path)
            assert len(list((path / "state").glob("policy-*.safetensors"))) == ranks
            coordinator.send(Shutdown(reason="done"))
            coordinator.expect(Goodbye)
            assert coordinator.wait() == [0] * ranks
    for name, weight in found[1].items():
        difference = (found[2][name] - weight).norm() / weight.norm()
        assert difference < 1e-5, name


def learner_whose_second_rank_loads_slowly(argv: list[str]) -> int:
    """A learner whose rank 1 builds its models only once there is a file `gate`."""
    gate = Path(argv[argv.index("--run-dir") + 1]) / "gate"

    def slow(*args: Any, work: ProgressReporter, **settings: Any) -> ModelSet:
        work.at("reading from a slow disk", 1, 2, "files")
        while not gate.exists():
            time.sleep(0.02)
        return ModelSet(*args, work=work, **settings)

    if argv[argv.index("--rank") + 1] == "1":
        patch.object(trainer, "ModelSet", slow).start()
    return learner.run.main(argv)


@pytest.mark.slow
def test_a_rank_that_loads_for_longer_than_the_first_is_heard(tmp_path: Path) -> None:
    """Rank 0 moves nothing meanwhile, and says no Hello: a coordinator would give up."""
    config = run_config(save_tiny_model(tmp_path / "model"), ranks=2)
    with ScriptedCoordinator(config, tmp_path / "run-10") as coordinator:
        coordinator.start_learner(2, learner_whose_second_rank_loads_slowly)
        coordinator.until_stage("reading from a slow disk")
        (coordinator.run_dir / "gate").touch()
        greet(coordinator, 0)
        coordinator.send(Shutdown(reason="done"))
        coordinator.expect(Goodbye)
        assert coordinator.wait() == [0, 0]


def learner_whose_second_rank_shelves_slowly(argv: list[str]) -> int:
    """A learner whose rank 1 writes its optimizers only once there is a file `gate`; a write is
    slow after three seconds."""
    rank = argv[argv.index("--rank") + 1]
    patch.object(disk, "SLOW_S", 3.0).start()
    return learner_whose_checkpoints_wait(argv) if rank == "1" else learner.run.main(argv)


@pytest.mark.slow
def test_a_disk_that_only_another_rank_lacks_is_told(tmp_path: Path) -> None:
    """Rank 0 waits for the files of rank 1, which has no connection to the coordinator."""
    config = run_config(save_tiny_model(tmp_path / "model"), ranks=2, zero_stage=2)
    with ScriptedCoordinator(config, tmp_path / "run-11") as coordinator:
        coordinator.start_learner(2, learner_whose_second_rank_shelves_slowly)
        greet(coordinator, 0)
        coordinator.send(CheckpointRequest(update=0, lineage=0))
        shelf = coordinator.run_dir / "checkpoints" / ".ranks"
        text = f"the disk of {shelf} to take the files of all ranks"
        assert coordinator.expect(Trouble) == Trouble(kind="disk", text=text, waits=True)
        (coordinator.run_dir / "gate").touch()
        assert coordinator.expect(Trouble) == Trouble(kind="disk", text="", waits=True)
        assert coordinator.expect(CheckpointDone).update == 0
        coordinator.send(Shutdown(reason="done"))
        coordinator.expect(Goodbye)
        assert coordinator.wait() == [0, 0]


@pytest.mark.slow
def test_policy_and_reference_are_read_at_the_samplers_temperature(tmp_path: Path) -> None:
    """Logprobs that the learner gives back are those of logits / T; and the reference, which is the
    policy's own start, is at no distance from it."""
    folder = save_tiny_model(tmp_path / "model")
    settings = run_config(folder, policy={"minibatches": 1}).model_dump()
    settings["generator"]["temperature"] = 0.6
    settings["algorithm"]["kl"] = {"coef": 0.1}
    config = RunConfig.model_validate(settings)
    shard = record(seed=1)
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    with ScriptedCoordinator(config, tmp_path / "run-1") as coordinator:
        coordinator.start_learner()
        greet(coordinator, 0)
        coordinator.send_batch(batch_of(shard, update=1, version=0))
        done = coordinator.expect(UpdateDone)
        coordinator.send(Shutdown(reason="done"))
        coordinator.expect(Goodbye)
    assert done.metrics["actor/reference_kl"] == pytest.approx(0.0, abs=1e-8)
    for window, made in zip(shard.windows, done.diagnostics, strict=True):
        sequence = shard.sequences[window.sequence]
        known = sequence.token_ids[: sequence.opening + window.end]
        ids = torch.from_numpy(known.astype(np.int64))
        first = sequence.opening + window.start
        with torch.no_grad():
            log_p = (model(ids[None]).logits[0, first - 1 : -1] / 0.6).log_softmax(-1)
        expected = log_p.gather(1, ids[first:, None]).squeeze(1)
        np.testing.assert_allclose(
            made.columns["learner_logprobs"], expected.numpy(), rtol=1e-4, atol=1e-4
        )


def test_hot_tokens_are_corrected_as_the_configuration_says(tmp_path: Path) -> None:
    """With a cap of 1 the weights of some hot tokens are cut."""
    settings = run_config(save_tiny_model(tmp_path / "model")).model_dump()
    settings["generator"]["fire"] = {"correction": "ratio", "ratio_cap": 1.0}
    config = RunConfig.model_validate(settings)
    shard = record(seed=3, hot=True)
    with ScriptedCoordinator(config, tmp_path / "run-1") as coordinator:
        coordinator.start_learner()
        greet(coordinator, 0)
        coordinator.send_batch(batch_of(shard, update=1, version=0))
        done = coordinator.expect(UpdateDone)
        coordinator.send(Shutdown(reason="done"))
        coordinator.expect(Goodbye)
    assert done.metrics["rollout/hot_tokens"] == sum(bool(w.marks) for w in shard.windows)
    cut = done.metrics["rollout/hot_over_cap"]
    assert isinstance(cut, float)
    assert 0 < cut < 1

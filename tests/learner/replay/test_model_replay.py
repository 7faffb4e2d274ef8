"""Updates that are computed again: what stands in their way, and ranks that fail."""

from pathlib import Path

import pytest

from headrace.config.sections.run import RunConfig
from headrace.errors import RunFailedError, UserError
from learner.replay import model_replay
from tests.coordinator.world import make_config
from tests.learner.recorded import batch_of, record


def test_ranks_that_lack_a_gpu_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_replay, "_room_for_ranks", lambda config: 2)
    model = {"path": str(tmp_path)}
    cut = make_config(model=model, learner={"ranks": 4, "zero_stage": 2})
    assert "this machine has 2" in str(model_replay.replay_obstacle(cut, tmp_path, 1, None))
    whole = make_config(model=model, learner={"ranks": 4, "precision": "float32"})
    assert model_replay.replay_obstacle(whole, tmp_path, 1, None) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("written", "error", "text"),
    [
        ("resolved.json", UserError, "^cannot load the model "),
        ("elsewhere.json", RunFailedError, "rank [01] of the replay ended with 1: FileNotFound"),
    ],
)
def test_a_rank_that_fails_ends_all_of_them(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    written: str,
    error: type[Exception],
    text: str,
) -> None:
    """The model's folder is empty; or the ranks do not find their configuration."""
    monkeypatch.setattr(model_replay, "RESOLVED", written)
    learner = {"ranks": 2, "device": "cpu"}
    config = make_config(model={"path": str(tmp_path)}, learner=learner)
    sent = batch_of(record(seed=1, trajectories=3), update=1, version=0, ranks=2, value_epochs=1)
    beside = tmp_path / "beside"
    beside.mkdir()
    with pytest.raises(error, match=text):
        model_replay.replay_update(
            config, tmp_path, sent.batch, [[shard] for shard in sent.shards], beside
        )


def test_a_student_that_came_without_its_start_is_read_from_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the teacher, which a replay reads as well."""
    teacher = tmp_path / "teacher"
    teacher.mkdir()
    kl = {"kl": {"coef": 1.0, "reference_path": str(teacher)}}
    config = make_config(model={"path": str(tmp_path / "gone")}, algorithm=kl)
    begun: list[str] = []

    def no_ranks(_config: RunConfig, folder: Path, *_others: object) -> None:
        written = (folder / model_replay.RESOLVED).read_text()
        begun.append(RunConfig.model_validate_json(written).model.path)
        raise RunFailedError("no rank is started")

    monkeypatch.setattr(model_replay, "_run_ranks", no_ranks)
    sent = batch_of(record(seed=1, trajectories=3), update=2)
    beside = tmp_path / "beside"
    beside.mkdir()
    with pytest.raises(RunFailedError):
        model_replay.replay_update(config, tmp_path, sent.batch, [list(sent.shards)], beside)
    assert begun == [str(beside / "checkpoints" / "step_1" / "policy")]

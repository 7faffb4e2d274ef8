"""What the processes of a run ask of a scheduler that shares out several hosts."""

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.config.sections.run import RunConfig
from headrace.errors import UserError
from headrace.host.hardware import interface_towards, own_address
from headrace.host.shared_memory import FOLDER, weights_name
from headrace_cli.launch import ray_launcher
from headrace_cli.launch.hosts import HOST, ResourceShare, plan_hosts
from headrace_cli.launch.ray_launcher import ProcessActor, check_room

Make = Callable[..., RunConfig]
RUN = Path("/runs/r1")


def shares(config: RunConfig, *, gpus: bool) -> dict[str, ResourceShare]:
    return {spec.name: share for spec, share in plan_hosts(config, RUN, gpus=gpus)}


def test_on_gpus_ranks_and_generators_ask_for_their_own(make_config: Make) -> None:
    config = make_config(
        "learner.ranks=4", "generator.count=2", "generator.tensor_parallel_size=2",
        "reward.workers=2", "reward.children=3", "dashboard.enabled=false",
    )  # fmt: skip
    assert shares(config, gpus=True) == {
        "coordinator": ResourceShare(1),
        **{f"learner-{rank}": ResourceShare(1, 1) for rank in range(4)},
        **{f"generator-{index}": ResourceShare(3, 2) for index in range(2)},
        **{f"reward-{index}": ResourceShare(3) for index in range(2)},
    }


def test_without_gpus_they_ask_for_cores(make_config: Make) -> None:
    config = make_config("learner.threads=4", "dashboard.enabled=false")
    assert shares(config, gpus=False) == {
        "coordinator": ResourceShare(1), "learner-0": ResourceShare(4),
        "generator-0": ResourceShare(1), "reward-0": ResourceShare(1),
    }  # fmt: skip
    on_cpu = make_config("learner.device=cpu", "dashboard.enabled=false")
    assert shares(on_cpu, gpus=True)["learner-0"] == ResourceShare(1)


def test_no_core_and_no_gpu_is_chosen_beforehand(make_config: Make) -> None:
    for spec, share in plan_hosts(make_config("learner.ranks=2"), RUN, gpus=True):
        assert (spec.gpus, spec.cpus) == ((), ())
        assert ("CUDA_VISIBLE_DEVICES" in spec.env) == (share.gpus == 0)
        if spec.role == "generator":
            assert spec.argv[-2:] == ("--cpus", "all")
        else:
            assert "--cpus" not in spec.argv
    (coordinator, _), *_ = plan_hosts(make_config(), RUN, gpus=False)
    assert coordinator.argv[-2:] == ("--announce", HOST)


@pytest.mark.parametrize(
    ("override", "words"),
    [("generator.cpus=[0]", r"generator\.cpus"), ("learner.cpus=[0]", r"learner\.cpus"),
     ('reward.judges.fair.path="j"', r"reward\.judges")],
)  # fmt: skip
def test_what_belongs_to_one_host_is_refused(make_config: Make, override: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        plan_hosts(make_config(override), RUN, gpus=False)


def test_the_interface_towards_a_host() -> None:
    assert own_address("127.0.0.1") == "127.0.0.1"
    assert interface_towards("127.0.0.1") == "lo"


def test_a_cluster_of_ray_whose_cores_others_have_is_refused(make_config: Make) -> None:
    """Its actors would wait, and the first one's silence would end the run."""
    plan = plan_hosts(make_config("dashboard.enabled=false"), RUN, gpus=False)
    cores = float(sum(share.cpus for _, share in plan))
    check_room(plan, {"CPU": cores}, {"CPU": cores})
    with pytest.raises(UserError, match="the cluster has 1; add nodes"):
        check_room(plan, {"CPU": 1.0}, {"CPU": 1.0})
    with pytest.raises(UserError, match="and 1 of the cluster's 99 are free now"):
        check_room(plan, {"CPU": 99.0}, {"CPU": 1.0})


def test_what_a_learner_published_that_was_killed_goes_with_its_actor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the memory of that host, on which there is no supervisor."""
    monkeypatch.setattr(ray_launcher, "_own_host", lambda: "127.0.0.1")
    run_id = f"ray-{tmp_path.name}"
    nobody = 2**22 + 1  # above the largest process id of Linux
    published = FOLDER / weights_name(run_id, nobody)
    published.mkdir()
    log = tmp_path / run_id / "logs" / "learner-0.log"
    try:
        assert ProcessActor().run(["true"], {}, str(log), None) == 0
        assert not published.exists()
    finally:
        if published.exists():
            published.rmdir()

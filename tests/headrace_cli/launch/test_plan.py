"""Where the processes of a run go, on machines of several sizes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.config.sections.run import RunConfig
from headrace.errors import UserError
from headrace.host.hardware import GIB, Gpu, Hardware
from headrace_cli.launch.plan import (
    ADDRESS,
    MASTER_ADDRESS,
    MASTER_PORT,
    ProcessSpec,
    idle_gpus,
    plan_processes,
)

Make = Callable[..., RunConfig]
RUN = Path("/runs/r1")


def machine(cores: int, gpus: int = 0) -> Hardware:
    cards = tuple(Gpu(index, "card", 80 * GIB) for index in range(gpus))
    return Hardware(tuple(range(cores)), 64 * GIB, 64 * GIB, cards)


def plan(config: RunConfig, hardware: Hardware) -> dict[str, ProcessSpec]:
    return {spec.name: spec for spec in plan_processes(config, RUN, hardware)}


def after(spec: ProcessSpec, option: str) -> str:
    return spec.argv[spec.argv.index(option) + 1]


def test_two_cores_streaming(make_config: Make) -> None:
    specs = plan(make_config(), machine(2))
    assert list(specs) == ["coordinator", "learner-0", "generator-0", "reward-0", "dashboard"]
    assert specs["coordinator"].argv[1:] == ("-m", "coordinator.run", "--run-dir", str(RUN))
    assert specs["learner-0"].argv[1:] == (
        "-m", "learner.run", "--run-dir", str(RUN), "--connect", ADDRESS, "--rank", "0",
        "--world-size", "1", "--master-address", MASTER_ADDRESS, "--master-port", MASTER_PORT,
        "--cpus", "1",
    )  # fmt: skip
    assert specs["generator-0"].argv[1:] == (
        "-m", "generators.run", "--connect", ADDRESS, "--name", "generator-0",
        "--evaluation-cpus", "0,1", "--cpus", "0",
    )  # fmt: skip
    assert specs["reward-0"].argv[1:] == (
        "-m", "rewards.run", "--connect", ADDRESS, "--name", "reward-0",
    )  # fmt: skip
    for spec in specs.values():
        assert spec.env["OMP_NUM_THREADS"] == spec.env["MKL_NUM_THREADS"] == "1"
        assert spec.env["PYTHONSAFEPATH"] == "1"
        assert spec.log == RUN / "logs" / f"{spec.name}.log"
    assert not specs["dashboard"].needed


@pytest.mark.parametrize("mode", ["synchronous", "windowed"])
def test_in_lockstep_both_sides_have_all_cores(make_config: Make, mode: str) -> None:
    config = make_config(f"schedule.mode={mode}")
    specs = plan(config, machine(2))
    assert specs["learner-0"].cpus == (0, 1)
    assert specs["learner-0"].env["OMP_NUM_THREADS"] == "2"
    assert specs["generator-0"].cpus == (0, 1)
    one = plan(make_config(f"schedule.mode={mode}", "learner.lockstep_threads=1"), machine(2))
    assert one["learner-0"].env["OMP_NUM_THREADS"] == "1"


def test_threads_that_wait_spin_for_a_short_while_unless_the_user_says_otherwise(
    make_config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spins() -> set[str | None]:
        specs = plan(make_config("schedule.mode=synchronous"), machine(2))
        return {spec.env.get("GOMP_SPINCOUNT") for spec in specs.values()}

    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    assert spins() == {"5000"}
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    assert spins() == {None}  # the process inherits what the user said


def test_a_learner_on_a_cpu_that_saves_memory_gives_freed_memory_back(
    make_config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "MALLOC_MMAP_THRESHOLD_"

    def threshold(*overrides: str, gpus: int = 0) -> dict[str, str | None]:
        specs = plan(make_config(*overrides), machine(2, gpus))
        return {role: specs[role].env.get(name) for role in ("learner-0", "generator-0")}

    monkeypatch.delenv(name, raising=False)
    saving = "learner.gradient_checkpointing=true"
    assert threshold(saving) == {"learner-0": "1048576", "generator-0": None}
    assert threshold() == threshold(saving, gpus=2) == {"learner-0": None, "generator-0": None}
    monkeypatch.setenv(name, "65536")
    assert threshold(saving)["learner-0"] is None  # the process inherits what the user said


@pytest.mark.parametrize(
    "override", ["schedule.mode=synchronous", "generator.engine=torch", "learner.cpus=[1]"]
)
def test_only_a_front_that_is_apart_from_its_engine_moves_for_evaluations(
    make_config: Make, override: str
) -> None:
    assert "--evaluation-cpus" in plan(make_config(), machine(2))["generator-0"].argv
    assert "--evaluation-cpus" not in plan(make_config(override), machine(2))["generator-0"].argv


def test_one_core_is_shared(make_config: Make) -> None:
    specs = plan(make_config(), machine(1))
    assert specs["learner-0"].cpus == specs["generator-0"].cpus == ()
    assert "--cpus" not in specs["learner-0"].argv


def test_eight_cores_three_generators(make_config: Make) -> None:
    specs = plan(make_config("generator.count=3", "learner.threads=4"), machine(8))
    assert [specs[f"generator-{index}"].cpus for index in range(3)] == [(0,), (1,), (2,)]
    assert specs["learner-0"].cpus == (3, 4, 5, 6, 7)
    assert specs["learner-0"].env["OMP_NUM_THREADS"] == "4"


def test_more_generators_than_cores_leave_one_to_the_learner(make_config: Make) -> None:
    specs = plan(make_config("generator.count=3"), machine(2))
    assert [specs[f"generator-{index}"].cpus for index in range(3)] == [(0,)] * 3
    assert specs["learner-0"].cpus == (1,)


def test_cores_can_be_named(make_config: Make) -> None:
    specs = plan(make_config("generator.cpus=[2,3]", "learner.cpus=[0]"), machine(4))
    assert specs["generator-0"].cpus == (2, 3)
    assert specs["learner-0"].cpus == (0,)
    assert "--evaluation-cpus" not in specs["generator-0"].argv
    with pytest.raises(UserError, match=r"generator\.cpus = \[9\]"):
        plan(make_config("generator.cpus=[9]"), machine(4))
    with pytest.raises(UserError, match=r"learner\.cpus = \[9\]"):
        plan(make_config("learner.cpus=[9]"), machine(8, gpus=1))


def test_one_gpu_is_shared(make_config: Make) -> None:
    specs = plan(make_config(), machine(8, gpus=1))
    assert specs["learner-0"].env["CUDA_VISIBLE_DEVICES"] == "0"
    assert specs["generator-0"].env["CUDA_VISIBLE_DEVICES"] == "0"
    assert specs["coordinator"].env["CUDA_VISIBLE_DEVICES"] == ""
    assert specs["learner-0"].cpus == ()
    # The generator reckons on its own host what the learner leaves.
    assert after(specs["generator-0"], "--company") == "1"
    assert "--company" not in plan(make_config(), machine(8, gpus=2))["generator-0"].argv
    several = plan(make_config("generator.count=2"), machine(8, gpus=2))["generator-1"].argv
    assert several[several.index("--company") :] == ("--company", "0", "2")


def test_idle_gpus_are_named(make_config: Make) -> None:
    for gpus, idle in ((0, ""), (1, ""), (2, ""), (4, "2, 3")):
        hardware = machine(8, gpus)
        assert idle_gpus(plan_processes(make_config(), RUN, hardware), hardware) == idle


def test_a_mig_device_is_named_by_its_uuid(make_config: Make) -> None:
    cards = (Gpu(0, "card", 80 * GIB, uuid="GPU-a"), Gpu(1, "part", 40 * GIB, uuid="MIG-b"))
    specs = plan(make_config(), Hardware((0, 1), 64 * GIB, 64 * GIB, cards))
    assert specs["learner-0"].env["CUDA_VISIBLE_DEVICES"] == "0"
    assert specs["generator-0"].env["CUDA_VISIBLE_DEVICES"] == "MIG-b"


def test_eight_gpus(make_config: Make) -> None:
    config = make_config("learner.ranks=4", "generator.count=2", "generator.tensor_parallel_size=2")
    specs = plan(config, machine(32, gpus=8))
    assert [specs[f"learner-{rank}"].gpus for rank in range(4)] == [("0",), ("1",), ("2",), ("3",)]
    assert [specs[f"generator-{index}"].gpus for index in range(2)] == [("4", "5"), ("6", "7")]
    assert [after(specs[f"learner-{rank}"], "--rank") for rank in range(4)] == list("0123")
    assert after(specs["learner-3"], "--world-size") == "4"


def test_a_learner_on_the_cpu_leaves_the_gpus_to_generators(make_config: Make) -> None:
    specs = plan(make_config("learner.device=cpu", "generator.count=2"), machine(8, gpus=2))
    assert specs["learner-0"].env["CUDA_VISIBLE_DEVICES"] == ""
    assert [specs[f"generator-{index}"].gpus for index in range(2)] == [("0",), ("1",)]


def test_a_generator_wider_than_the_machine_is_refused(make_config: Make) -> None:
    with pytest.raises(UserError, match="tensor_parallel_size = 4 but this machine has 2"):
        plan(make_config("generator.tensor_parallel_size=4"), machine(8, gpus=2))


def test_keys_go_to_the_roles_that_have_no_configuration_yet(make_config: Make) -> None:
    specs = plan(make_config("transport.curve_keys=/keys"), machine(2))
    assert after(specs["generator-0"], "--curve-keys") == "/keys"
    assert after(specs["reward-0"], "--curve-keys") == "/keys"


def test_an_evaluation_has_no_learner_and_a_run_may_have_no_page(make_config: Make) -> None:
    specs = plan(make_config("evaluation.only=true", "dashboard.enabled=false"), machine(2))
    assert list(specs) == ["coordinator", "generator-0", "reward-0"]


def test_restart_policies(make_config: Make) -> None:
    specs = plan(make_config("reward.workers=2"), machine(2))
    assert specs["learner-0"].restarts.limit > 0
    assert specs["generator-0"].restarts.limit > 0
    assert specs["reward-1"].restarts.limit > 0

"""Where the judges of a run work, and what is left to the others."""

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.config.sections.run import RunConfig
from headrace.errors import UserError
from headrace.protocol.messages.judges import JUDGES_VARIABLE
from headrace_cli.launch.judge_plan import place_judges
from tests.headrace_cli.launch.test_plan import machine, plan

Make = Callable[..., RunConfig]


def judges(**tables: str) -> str:
    listed = ",".join(f'{name}={{path="/models/{name}"{more}}}' for name, more in tables.items())
    return f"reward.judges={{{listed}}}"


def test_a_judge_is_a_process_of_the_run(make_config: Make) -> None:
    specs = plan(make_config(judges(fair="")), machine(2))
    spec = specs["judge-fair"]
    assert spec.argv[1:3] == ("-m", "generators.serving.judge")
    assert spec.argv[spec.argv.index("--name") + 1] == "fair"
    assert (spec.role, spec.needed, spec.leaves, spec.restarts.limit) == ("judge", True, False, 5)
    assert spec.log.name == "judge-fair.log"
    assert specs["reward-0"].env[JUDGES_VARIABLE].endswith("/judges")
    without = plan(make_config(), machine(2))
    assert "judge-fair" not in without
    assert JUDGES_VARIABLE not in without["reward-0"].env


def test_a_run_can_do_without_a_judge_that_only_audits(make_config: Make) -> None:
    sources = (
        'reward.sources.math={kind="math"}',
        'reward.sources.audit={kind="judge",options={judge="fair"}}',
        'reward.audit={source="audit"}',
    )
    config = make_config(judges(fair=""), *sources, 'reward.route={default="math"}')
    assert not plan(config, machine(2))["judge-fair"].needed
    config = make_config(judges(fair=""), *sources, 'reward.route={default="audit"}')
    assert plan(config, machine(2))["judge-fair"].needed


@pytest.mark.parametrize(
    ("cores", "of_judges", "left"),
    [
        (1, ((), ()), 1),
        (3, ((), ()), 3),
        (4, ((3,), ()), 3),
        (8, ((7,), (6,)), 6),
    ],
)
def test_cores_of_judges(
    make_config: Make, cores: int, of_judges: tuple[tuple[int, ...], ...], left: int
) -> None:
    places, others = place_judges(make_config(judges(a="", b="")), machine(cores))
    assert tuple(place.cpus for place in places.values()) == of_judges
    assert len(others.cores) == left


def test_cores_that_someone_chose(make_config: Make) -> None:
    config = make_config(judges(a=",cpus=[0]", b=""))
    places, others = place_judges(config, machine(8))
    assert (places["a"].cpus, places["b"].cpus) == ((0,), (7,))
    assert others.cores == (1, 2, 3, 4, 5, 6)
    with pytest.raises(UserError, match=r"reward.judges.a.cpus = \[9\], but this machine"):
        place_judges(make_config(judges(a=",cpus=[9]")), machine(2))


@pytest.mark.parametrize(
    ("gpus", "of_judges", "left"),
    [
        (1, ("0", "0"), (0,)),
        (2, ("1", "0"), (0, 1)),
        (3, ("2", "1"), (0, 1, 2)),
        (4, ("3", "2"), (0, 1)),
    ],
)
def test_gpus_of_judges(
    make_config: Make, gpus: int, of_judges: tuple[str, ...], left: tuple[int, ...]
) -> None:
    places, others = place_judges(make_config(judges(a="", b="")), machine(8, gpus))
    assert tuple(place.gpus for place in places.values()) == tuple((name,) for name in of_judges)
    assert tuple(gpu.index for gpu in others.gpus) == left


def test_a_judge_over_several_gpus(make_config: Make) -> None:
    config = make_config(judges(a=",tensor_parallel_size=2"))
    places, others = place_judges(config, machine(8, 4))
    assert places["a"].gpus == ("2", "3")
    assert [gpu.index for gpu in others.gpus] == [0, 1]
    with pytest.raises(UserError, match=r"a\.tensor_parallel_size = 2 but this machine has 1 GPU"):
        place_judges(config, machine(8, 1))


def test_the_run_folder_is_where_it_says_its_address(make_config: Make) -> None:
    specs = plan(make_config(judges(fair="")), machine(2))
    run_dir = specs["judge-fair"].argv[specs["judge-fair"].argv.index("--run-dir") + 1]
    assert Path(run_dir) / "judges" == Path(specs["reward-0"].env[JUDGES_VARIABLE])

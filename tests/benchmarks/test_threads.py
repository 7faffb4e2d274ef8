"""The benchmark of threads: its settings, ratios turn by turn, company that ends."""

import psutil

from benchmarks.made_runs import MODEL
from benchmarks.threads import REFERENCE, company, over_one, settings, updates


def test_ratios_are_of_the_same_turn() -> None:
    found = over_one({"spinning": [2.0, 8.0, 3.0], REFERENCE: [1.0, 2.0, 3.0]})
    assert found["spinning"] == {"median": 2.0, "min": 1.0, "max": 4.0}
    assert found[REFERENCE] == {"median": 1.0, "min": 1.0, "max": 1.0}


def test_settings_differ_in_threads_and_in_how_they_wait() -> None:
    chosen = settings(4)
    assert {name: one.threads for name, one in chosen.items()} == {
        "spinning": 4, "short": 4, "passive": 4, REFERENCE: 1,
    }  # fmt: skip
    assert chosen["spinning"].environment["GOMP_SPINCOUNT"] == "300000"
    assert chosen["short"].environment["GOMP_SPINCOUNT"] == "5000"
    assert chosen["passive"].environment["GOMP_SPINCOUNT"] == "0"


def test_company_keeps_a_core_each_and_ends() -> None:
    before = set(psutil.Process().children())
    with company(2):
        others = set(psutil.Process().children()) - before
        assert len(others) == 2
    assert not any(other.is_running() for other in others)


def test_a_learner_makes_an_update_for_each_seed() -> None:
    with updates(MODEL, 4, settings(1)[REFERENCE]) as seconds:
        (process,) = [p for p in psutil.Process().children() if "spawn_main" in p.cmdline()[-2]]
        assert {"OMP_NUM_THREADS": "1", "GOMP_SPINCOUNT": "0"}.items() <= process.environ().items()
        assert min(seconds(1), seconds(2)) > 0
    assert not process.is_running()

"""The front of a generator moves to the learner's cores for an evaluation, and back."""

import os
from collections.abc import Iterator

import pytest

from generators.rollout.cpu_affinity import FrontCores
from generators.run import pin
from headrace.errors import UserError


@pytest.fixture(autouse=True)
def allowed() -> Iterator[set[int]]:
    """The cores of this machine, given back after the test."""
    cores = os.sched_getaffinity(0)
    yield cores
    os.sched_setaffinity(0, cores)


def test_an_evaluation_may_use_more_cores_than_training(allowed: set[int]) -> None:
    own = min(allowed)
    cores = pin([own], sorted(allowed))
    assert os.sched_getaffinity(0) == {own}
    cores.serve(evaluation=True)
    assert os.sched_getaffinity(0) == allowed
    cores.serve(evaluation=True)
    cores.serve(evaluation=False)
    assert os.sched_getaffinity(0) == {own}


def test_without_cores_for_evaluations_nothing_moves(allowed: set[int]) -> None:
    own = min(allowed)
    cores = pin([own])
    cores.serve(evaluation=True)
    assert os.sched_getaffinity(0) == {own}
    os.sched_setaffinity(0, allowed)
    FrontCores().serve(evaluation=True)
    assert os.sched_getaffinity(0) == allowed


def test_cores_that_are_not_there_are_named_at_the_start() -> None:
    with pytest.raises(UserError, match=r"cannot run on cores \[100000\]"):
        pin([100_000])

"""Generators that come, are drained, killed, cut off and slowed on hosts of their own, while
learning goes on."""

from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.robustness.chaos_testbed import NamespaceNetwork
from benchmarks.robustness.elastic import HOSTS, ElasticTrial, elsewhere, problem
from headrace.protocol.records.record_types import LeaseIssued

pytestmark = [pytest.mark.timeout(400)]


def lease(trajectory: int, generator: str, at: float) -> LeaseIssued:
    return LeaseIssued(
        at=at, lease_id=0, trajectory_id=trajectory, generator=generator, start=0, version=0
    )


def test_answers_of_the_killed_are_elsewhere_when_the_last_one_is_leased_again() -> None:
    records = [
        lease(1, "a", 1.0), lease(2, "a", 1.0), lease(3, "b", 1.0),
        lease(1, "b", 4.0), lease(2, "c", 7.5), lease(3, "c", 9.0), lease(2, "d", 20.0),
    ]  # fmt: skip
    assert elsewhere(records, {"a": 3.0}) == [4.5]
    assert elsewhere(records, {}) == []


@pytest.mark.slow
@pytest.mark.skipif(bool(problem()), reason=f"no networks of one's own: {problem()}")
def test_hosts_come_and_go_and_nothing_is_lost(tmp_path: Path) -> None:
    with closing(NamespaceNetwork(HOSTS)) as network:
        found = ElasticTrial(tmp_path, network, seed=3).play(events=9, most=4)
    assert (found["findings"], found["lost"], found["drained_lost"]) == (0, 0, 0), found["texts"]
    assert found["exit_code"] == 130  # Ctrl-C
    assert found["updates"] >= 3
    assert found["joined"] >= 1

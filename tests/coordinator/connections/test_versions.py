"""Versions, by hand: how old each one is, how old a lease's may be, and which are forgotten."""

import pytest

from coordinator.connections import versions as module
from coordinator.connections.versions import Versions
from headrace.protocol.token_spans import Span


def published(last: int, *, still: tuple[int, ...] = ()) -> Versions:
    """Each update up to `last` has the version of its number; those in `still` changed nothing."""
    versions = Versions()
    for update in range(last + 1):
        if update in still:
            versions.keep_version(update)
        versions.publish(update, update)
    return versions


def ages(versions: Versions, update: int) -> list[int]:
    return [versions.age(version, update) for version in range(6)]


def test_an_update_that_changed_nothing_makes_no_version_older() -> None:
    """Changes behind the versions 0 to 5: 0, 1, 2, 2, 3, 4."""
    versions = published(5, still=(3,))
    assert ages(versions, 5) == [4, 3, 2, 2, 1, 0]
    assert ages(versions, 8) == [7, 6, 5, 5, 4, 3]
    assert ages(versions, 3) == [2, 1, 0, 0, 0, 0], "a later version is as young as can be"
    spans = [Span(1, 10, 12), Span(4, 13, 15)]
    assert versions.ages(spans, 10, 16, 5).tolist() == [3, 3, 0, 1, 1, 0]


def test_a_rollback_keeps_what_stood_still_up_to_its_update() -> None:
    versions = published(5, still=(3,))
    versions.roll_back(3)
    assert versions.age(2, 4) == 1
    versions.roll_back(2)
    assert versions.age(2, 4) == 2


def test_the_oldest_version_of_a_lease_is_the_last_whose_tokens_could_be_trained() -> None:
    versions = published(5)
    found = [versions.oldest_allowed(5, age) for age in (0, 1, 2, 9)]
    assert found == [5, 4, 3, 0]
    assert versions.oldest_allowed(6, 2) == 4
    assert versions.oldest_allowed(6, 0) == 5, "none is young enough, and the current one goes"
    versions.publish(6, 6)
    assert versions.oldest_allowed(6, 0) == 6
    assert Versions().oldest_allowed(0, 1) == 0


def test_a_lease_may_have_an_older_version_once_the_update_out_has_changed_nothing() -> None:
    """It is asked with the batch in flight, and again when its update was broken off."""
    versions = published(5)
    assert versions.oldest_allowed(6, 1) == 5
    versions.keep_version(6)
    assert versions.oldest_allowed(6, 1) == 4


def test_behind_a_rollback_abandoned_versions_are_younger_than_later_ones() -> None:
    """Version 7 is of update 3, as version 3 is; those between them are of updates to come."""
    versions = published(6)
    versions.roll_back(3)
    versions.publish(7, 3)
    assert versions.oldest_allowed(3, 2) == 1
    versions.publish(8, 4)
    assert versions.oldest_allowed(4, 0) == 8, "version 7 is too old, whatever stands before it"


def test_the_newest_versions_and_those_asked_for_are_never_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "KEPT", 3)
    versions = published(9)
    known = []
    for before in (5, 9):
        versions.forget(before)
        known.append([version for version in range(11) if versions.knows(version)])
    assert known == [[5, 6, 7, 8, 9], [6, 7, 8, 9]]

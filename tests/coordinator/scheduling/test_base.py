"""The scheduler: successive batching (golden case G14), the staleness bound, held trajectories,
value batches of a token budget."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace.config.preflight.checks import problems
from headrace.config.sections.run import RunConfig
from headrace.protocol.records.record_types import ClosedWindow, GroupIssued, Record
from headrace.protocol.token_spans import Mark, MediaRun, Streams
from headrace.trajectory.trajectories import issued_again
from headrace.trajectory.windows import Window, trajectory_of
from tests.coordinator.world import World, make_config, policy_windows, value_trajectories

LENGTHS = {"a": 3, "b": 10, "c": 6, "d": 99, "e": 2, "f": 5, "g": 7, "h": 4, "i": 8, "j": 1}
CAP, WINDOW = 12, 4


def test_successive_batching_golden_case_14() -> None:
    world = World(make_config())
    names = list(LENGTHS)
    steps: list[tuple[str, int, int]] = []
    while True:
        leased = [t for t in world.fill(4) if t.trajectory_id < len(names)]
        if not leased:
            break
        for trajectory in world.running():
            if trajectory not in leased:  # Beyond the ten of the golden case: end at once.
                world.chunk(trajectory, 1, "stop")
        extra = [t for t in world.account.trajectories.values() if t.trajectory_id >= len(names)]
        row = []
        for trajectory in leased:
            goal = min(LENGTHS[names[trajectory.trajectory_id]], CAP)
            start = trajectory.length
            end = min(start + WINDOW, goal)
            over = end == goal
            finish = "window" if not over else ("length" if end == CAP else "stop")
            world.chunk(trajectory, end - start, finish)
            if over:
                world.reward(trajectory)
            mark = "F" if over else "U"
            row.append(f"{names[trajectory.trajectory_id]}[{start}:{end}]{mark}")
        for trajectory in extra:
            if trajectory.reward is None:
                world.reward(trajectory)
        prepared = world.take()
        assert prepared is not None
        policy = sum(
            int(w.loss_weights.sum())
            for w in policy_windows(prepared)
            if w.trajectory_id < len(names)
        )
        value = sum(
            world.account.trajectories[i].length
            for i in prepared.taken.value_trajectories
            if i < len(names)
        )
        steps.append((" ".join(row), policy, value))
        world.commit()
        assert world.account.ledger.balance() == 0
    assert steps == [
        ("a[0:3]F b[0:4]U c[0:4]U d[0:4]U", 15, 3),
        ("b[4:8]U c[4:6]F d[4:8]U e[0:2]F", 12, 8),
        ("b[8:10]F d[8:12]F f[0:4]U g[0:4]U", 14, 22),
        ("f[4:5]F g[4:7]F h[0:4]F i[0:4]U", 12, 16),
        ("i[4:8]F j[0:1]F", 5, 9),
    ]
    assert sum(step[1] for step in steps) == sum(step[2] for step in steps) == 58


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(1, 12), min_size=30, max_size=60),
    st.integers(0, 3),
    st.none() | st.integers(4, 9),
    st.integers(1, 5),
)
def test_streaming_bound_ledger_and_each_token_once(
    lengths: list[int], staleness: int, in_play: int | None, chunk: int
) -> None:
    """Whatever the lengths: windows in play stay under the bound, no token is trained twice."""
    config = make_config(
        schedule={
            "mode": "streaming",
            "max_staleness": staleness,
            "max_in_play": in_play,
            "batch_windows": 3,
        }
    )
    world = World(config)
    trained: set[tuple[int, int]] = set()
    goal = dict(enumerate(lengths))
    for _ in range(2000):
        world.fill(6 - len(world.leased()))
        assert world.scheduler.in_play() <= world.scheduler.bound
        live = world.leased()
        for trajectory in live:
            end = goal.get(trajectory.trajectory_id, 1)
            border = trajectory.open_start + WINDOW
            tokens = min(chunk, end - trajectory.length, border - trajectory.length)
            over = trajectory.length + tokens == end
            world.chunk(trajectory, tokens, "stop" if over else None)
            if over:
                world.reward(trajectory)
            elif world.must_hold(trajectory):
                world.chunk(trajectory, 0, "held")
            assert world.scheduler.in_play() <= world.scheduler.bound
        prepared = world.take()
        if prepared:
            for window in policy_windows(prepared):
                for position in range(window.start, window.end):
                    assert (window.trajectory_id, position) not in trained
                    trained.add((window.trajectory_id, position))
            world.commit()
        assert world.account.ledger.balance() == 0
        if world.state.next_trajectory > len(lengths) + 20:
            break
    for trajectory_id, length in goal.items():
        known = world.account.trajectories.get(trajectory_id)
        if known and known.ended and all(w.state == "trained" for w in known.windows):
            got = {p for t, p in trained if t == trajectory_id}
            assert got == set(range(length))
    assert trained


def test_with_staleness_zero_nothing_begins_while_the_learner_works() -> None:
    config = make_config(schedule={"mode": "streaming", "max_staleness": 0, "batch_windows": 2})
    world = World(config)
    for trajectory in world.fill(8):
        world.chunk(trajectory, 2, "stop")
        world.reward(trajectory)
    assert world.fill(8) == []
    assert world.take() is not None
    assert world.fill(8) == []
    world.commit()
    assert len(world.fill(8)) == 2


def test_the_oldest_weights_go_first_and_then_who_was_ready_first() -> None:
    """`late` was begun under version 0 and is full last; `slow` was issued before `quick`."""
    schedule = {"mode": "streaming", "max_staleness": 3, "batch_windows": 1}
    world = World(make_config(schedule=schedule))
    late, slow, quick = world.fill(3)
    world.chunk(late, 2)
    world.publish(1)
    for trajectory in (quick, slow):
        world.chunk(trajectory, WINDOW)
    world.chunk(late, 2)
    taken: list[int] = []
    for _ in range(3):
        prepared = world.take()
        assert prepared is not None
        taken += [window.trajectory_id for window in policy_windows(prepared)]
        world.commit(publish=False)
    assert taken == [late.trajectory_id, quick.trajectory_id, slow.trajectory_id]


def test_who_is_early_at_its_border_waits_for_the_rest_of_the_round() -> None:
    world = World(make_config())
    early, *others = world.fill(8)
    world.chunk(early, WINDOW, "window")
    assert world.fill(8) == []
    for trajectory in others:
        world.chunk(trajectory, 2, "stop")
        world.reward(trajectory)
    prepared = world.take()
    assert prepared is not None
    assert [trajectory_of(w.window_id)[1] for w in prepared.taken.windows] == [0, 0, 0, 0]
    world.commit()
    assert world.fill(8)[0] is early


def test_a_round_goes_on_where_a_generator_was_lost() -> None:
    world = World(make_config())
    lost, *_ = world.fill(4)
    world.chunk(lost, 2)
    world.leases.release(lost.trajectory_id)
    assert world.fill(4) == [lost]


def test_a_round_waits_for_groups_that_could_not_be_issued_at_once() -> None:
    """Environments had no room, or the disk took no image."""
    world = World(make_config())

    def end_one() -> None:
        (trajectory,) = world.issue()
        world.lease(trajectory)
        world.chunk(trajectory, 2, "stop")
        world.reward(trajectory)

    for lacking in (4, 3, 2, 1):
        assert world.take() is None
        assert world.scheduler.next_leases(8) == ([], lacking)
        end_one()
    assert world.scheduler.next_leases(8) == ([], 0)
    prepared = world.take()
    assert prepared is not None
    assert len(prepared.taken.windows) == 4


@pytest.mark.parametrize("shown", [True, False])
def test_a_round_whose_images_were_being_stored_is_issued_to_its_end_after_a_restart(
    tmp_path: Path, shown: bool
) -> None:
    """Each group of it was recorded for itself, and the first ones may have no image."""
    (tmp_path / "config.json").write_text('{"model_type": "qwen3_vl", "vision_config": {}}')

    class Seeing(World):
        def note(self, record: Record) -> None:
            if isinstance(record, GroupIssued) and shown:
                record = replace(record, media=[MediaRun("0" * 64, 0, 1)])
            super().note(record)

    world = Seeing(make_config(model={"path": str(tmp_path)}))
    assert world.scheduler.next_leases(8) == ([], 4)
    world.issue()
    world.restart()
    assert world.scheduler.next_leases(8)[1] == 3


def test_a_full_start_waits_for_first_windows_after_a_restart_too() -> None:
    schedule = {"mode": "streaming", "max_staleness": 4, "batch_windows": 1, "warm_start": "full"}
    world = World(make_config(schedule=schedule, algorithm={"value": {"warmup_updates": 0}}))
    world.fill(4)
    world.restart()
    first, *others = world.leased()
    world.chunk(first, WINDOW)
    assert world.take() is None
    for trajectory in others:
        world.chunk(trajectory, WINDOW)
    assert world.take() is not None


def test_the_last_of_a_group_goes_on_where_its_siblings_wait_for_it() -> None:
    """Their windows fill the bound until all of the group have ended."""
    group = {"kind": "function", "function": "m:f", "unit": "group"}
    schedule = {
        "mode": "streaming", "max_staleness": 1, "batch_windows": 4, "num_generations": 8,
    }  # fmt: skip
    world = World(make_config(schedule=schedule, reward=group))
    *others, last = world.fill(8)
    for trajectory in others:
        world.chunk(trajectory, 3, "stop")
    world.chunk(last, WINDOW)
    assert not world.must_hold(last)


def test_a_full_start_waits_for_none_that_failed() -> None:
    schedule = {"mode": "streaming", "max_staleness": 1, "batch_windows": 2, "warm_start": "full"}
    world = World(make_config(schedule=schedule, algorithm={"value": {"warmup_updates": 0}}))
    failed, *others = world.fill(4)
    world.end(failed, "failed")
    for trajectory in others:
        world.chunk(trajectory, WINDOW)
    assert world.take() is not None


def test_carried_trajectories_leave_no_small_batch_behind() -> None:
    """5 slots for groups of 2, one trajectory carried: two groups, not three."""
    world = World(make_config(schedule={"batch_windows": 5, "num_generations": 2}))
    for trajectory in world.fill(8):
        over = trajectory.trajectory_id > 0
        world.chunk(trajectory, 2 if over else WINDOW, "stop" if over else "window")
        if over:
            world.reward(trajectory)
    assert world.take() is not None
    world.commit()
    assert [t.trajectory_id for t in world.fill(8)] == [0, 4, 5, 6, 7]


@pytest.mark.parametrize("mode", ["synchronous", "windowed"])
def test_a_round_of_one_large_group_is_one_batch(mode: str) -> None:
    """None of its windows waits for a later update, where it would be too old."""
    schedule = {"mode": mode, "batch_windows": 2, "num_generations": 4, "max_staleness": 0}
    world = World(make_config(schedule=schedule))
    for trajectory in world.fill(8):
        world.chunk(trajectory, 2, "stop")
        world.reward(trajectory)
    prepared = world.take()
    assert prepared is not None
    assert [w.trajectory_id for w in policy_windows(prepared)] == [0, 1, 2, 3]
    assert all(w.loss_weights.all() for w in policy_windows(prepared))
    world.commit()
    assert not world.account.ready
    assert [t.trajectory_id for t in world.fill(8)] == [4, 5, 6, 7]


def facts(window: Window) -> ClosedWindow:
    """What does not depend on when it became ready."""
    names = ClosedWindow.__struct_fields__
    return ClosedWindow(**{name: getattr(window, name) for name in names})


def _batches(
    lengths: list[int], warmup: int, arrival: int, *, stops: float = 0.0, **schedule: Any
) -> list[Any]:
    """What some updates are made of when tokens and scores arrive in a random order. `stops`: how
    often the run is stopped and resumed between two events."""
    rng = random.Random(arrival)
    world = World(make_config(schedule=schedule, algorithm={"value": {"warmup_updates": warmup}}))
    found: list[Any] = []
    scores: list[int] = []
    while len(found) < 6:
        if rng.random() < stops:
            _stop_and_resume(world, rng)
        world.fill(8 - len(world.leased()))
        live = world.leased()
        if live and (not scores or rng.random() < 0.5):
            trajectory = rng.choice(live)
            goal = lengths[trajectory.trajectory_id % len(lengths)]
            border = min(trajectory.open_start + world.config.window, goal)
            end = rng.randint(trajectory.length + 1, border)
            if end == goal:
                world.chunk(trajectory, end - trajectory.length, "stop")
                scores.append(trajectory.trajectory_id)
            else:
                halts = end == border and world.scheduler.stops_at_border()
                world.chunk(trajectory, end - trajectory.length, "window" if halts else None)
                if trajectory in world.leased() and not world.scheduler.lockstep:
                    assert not (end == border and world.must_hold(trajectory))
        elif scores:
            key = scores.pop(rng.randrange(len(scores)))
            world.reward(world.account.trajectories[key])
        prepared = world.take()
        if prepared:
            windows = [facts(world.account.window(w.window_id)) for w in prepared.taken.windows]
            masked = [w.masked for w in prepared.taken.windows]
            found.append((windows, masked, prepared.taken.value_trajectories))
            world.commit(publish=bool(prepared.taken.windows))
    return found


def _stop_and_resume(world: World, rng: random.Random) -> None:
    """Another coordinator takes over; the learner has the same weights, under another version, and
    the generator may be another one, too."""
    world.restart()
    if rng.random() < 0.7:
        for trajectory in world.leased():
            world.leases.release(trajectory.trajectory_id)
    world.roll_back(world.state.update)


def _without_versions(batches: list[Any]) -> list[Any]:
    return [
        ([replace(w, min_version=0, max_version=0) for w in windows], masked, values)
        for windows, masked, values in batches
    ]


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.integers(1, 12), min_size=5, max_size=40),
    st.integers(0, 2),
    st.integers(),
    st.sampled_from(["windowed", "synchronous"]),
    st.integers(1, 2),
)
def test_rounds_that_are_stopped_and_resumed_are_those_that_were_not(
    lengths: list[int], warmup: int, arrival: int, mode: str, size: int
) -> None:
    """To the order of windows, at whatever moment the run was stopped."""
    schedule: dict[str, Any] = {"mode": mode, "max_staleness": 0, "num_generations": size}
    whole = _batches(lengths, warmup, arrival, **schedule)
    cut = _batches(lengths, warmup, arrival + 1, stops=0.1, **schedule)
    assert _without_versions(cut) == _without_versions(whole)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 12), min_size=5, max_size=40), st.integers(0, 2), st.integers())
def test_a_stream_of_staleness_zero_makes_the_batches_of_windowed_rounds(
    lengths: list[int], warmup: int, arrival: int
) -> None:
    """To the order of windows, whoever arrives first."""
    zero = {"max_staleness": 0}
    windowed = _batches(lengths, warmup, arrival, mode="windowed", **zero)
    streaming = _batches(lengths, warmup, arrival + 1, mode="streaming", **zero)
    assert windowed == streaming
    whole = _batches(lengths, warmup, arrival, mode="windowed", window=12)
    assert whole == _batches(lengths, warmup, arrival + 1, mode="synchronous", window=12)
    assert all(w.max_version == w.min_version for windows, _, _ in windowed for w in windows)
    assert not any(runs for _, masked, _ in windowed + whole for runs in masked)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(1, 12), min_size=5, max_size=40), st.integers())
def test_synchronous_rounds_look_at_no_window(lengths: list[int], arrival: int) -> None:
    """`schedule.window` stands in the recipe, and whole responses are generated and trained."""
    batches = _batches(lengths, 1, arrival, mode="synchronous", window=4)
    assert batches == _batches(lengths, 1, arrival + 1, mode="synchronous", window=None)
    assert all(w.index == w.start == 0 for windows, _, _ in batches for w in windows)


def _updates(
    config: RunConfig, seed: int, *, failures: float = 0.0, steps: int = 150
) -> Iterator[tuple[World, bool, list[int]]]:
    """Updates of a run with random lengths, lost leases and scores that fail: the world after the
    commit, whether it was of the warm-up, and the lengths of the responses that the value model
    was trained on. It asserts that something can happen at every step."""
    rng, world = random.Random(seed), World(config)
    seen: set[int] = set()
    for _ in range(steps):
        world.fill(10 - len(world.leased()))
        live = world.leased()
        for trajectory in rng.sample(live, min(3, len(live))):
            goal = random.Random(f"{seed} {trajectory.trajectory_id}").randint(1, 12)
            border = trajectory.open_start + config.window
            end = rng.randint(trajectory.length + 1, min(goal, border))
            stops = end == border and world.scheduler.stops_at_border()
            finish = "stop" if end == goal else "window" if stops else None
            world.chunk(trajectory, end - trajectory.length, finish)
            if end == goal:
                right = float(rng.random() < 0.5)
                world.reward(trajectory, None if rng.random() < failures else right)
            elif finish is None and (rng.random() < 0.1 or world.must_hold(trajectory)):
                world.chunk(trajectory, 0, "held")
        warming, prepared = world.scheduler.warming, world.take()
        assert live or prepared is not None, "nobody is under way, and there is no batch"
        if prepared is None:
            continue
        taken = prepared.taken
        assert seen.isdisjoint(taken.value_trajectories)
        seen.update(taken.value_trajectories)
        lengths = [world.account.trajectories[i].length for i in taken.value_trajectories]
        world.commit(publish=bool(taken.windows))
        assert world.account.ledger.balance() == 0
        yield world, warming, lengths
    scored = {i: t for i, t in world.account.trajectories.items() if t.reward_status == "ok"}
    lost = scored.keys() - seen - world.account.values.keys()
    assert {scored[i].windows[-1].reason for i in lost} <= {"filtered"}, "an answer is lost"
    assert seen | world.account.values.keys() <= scored.keys()


STREAMS = st.fixed_dictionaries(
    {
        "mode": st.just("streaming"),
        "batch_windows": st.integers(1, 6),
        "num_generations": st.integers(1, 7),
        "max_staleness": st.integers(0, 2),
        "max_in_play": st.none() | st.integers(2, 12),
        "value_batch_tokens": st.none() | st.integers(1, 150),
        "stale": st.sampled_from(["mask", "wait"]),
        "warm_start": st.sampled_from(["stream", "full"]),
    }
)


@settings(deadline=None, max_examples=40)
@given(
    STREAMS, st.sampled_from(["all", "mixed_groups"]), st.integers(0, 3),
    st.sampled_from([0.0, 0.3]), st.integers(0, 10_000),
)  # fmt: skip
def test_what_the_rules_accept_never_stalls(
    schedule: dict[str, Any], admit: str, warmup: int, failures: float, seed: int
) -> None:
    algorithm = {"value": {"warmup_updates": warmup}, "admit": admit}
    config = make_config(schedule=schedule, algorithm=algorithm)
    assume(problems(config) == [])
    updates = sum(1 for _ in _updates(config, seed, failures=failures))
    assert updates > warmup


@pytest.mark.parametrize(
    ("generations", "budget"), [(1, 100), (3, None)], ids=["tokens", "trajectories"]
)
def test_a_warm_up_takes_what_is_there_where_nothing_more_may_begin(
    generations: int, budget: int | None
) -> None:
    """A budget over what the bound holds; groups that leave the last place of it empty."""
    config = make_config(
        schedule={
            "mode": "streaming", "max_staleness": 0, "value_batch_tokens": budget,
            "num_generations": generations,
        },
        algorithm={"value": {"warmup_updates": 2}},
    )  # fmt: skip
    world = World(config)
    leased = world.fill(8)
    for trajectory in leased:
        assert world.take() is None
        world.chunk(trajectory, 3, "stop")
        assert world.take() is None
        world.reward(trajectory)
    prepared = world.take()
    assert prepared is not None
    assert prepared.taken.value_trajectories == [t.trajectory_id for t in leased]
    assert not prepared.taken.windows


@pytest.mark.parametrize("mode", ["synchronous", "windowed", "streaming"])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_warm_up_waits_for_all_answers_to_its_prompts(mode: str, restarts: bool) -> None:
    """Also for the slow ones, beyond the bound, and for no others; one that cannot be scored is
    left out."""
    config = make_config(
        schedule={"mode": mode, "max_staleness": 0, "batch_windows": 4}
        | ({"window": 12} if mode == "synchronous" else {}),
        algorithm={"value": {"warmup_updates": 1, "warmup_prompts": 9, "fit": "least_squares"}},
    )
    world = World(config)
    first: list[int] = []
    for step in range(60):
        world.fill(12)
        if restarts and step % 3 == 2:
            world.restart()
            continue
        for trajectory in world.leased():
            number = trajectory.trajectory_id
            left = (2 if number else 11) - trajectory.length
            world.chunk(trajectory, 1, "stop" if left == 1 else None)
            if trajectory.ended:
                world.reward(trajectory, None if number == 3 else 1.0)
        through = [t.ended and t.reward_status for t in world.account.trajectories.values()]
        prepared = world.take()
        if prepared is not None:
            first = prepared.taken.value_trajectories
            break
        assert not all(through[:9]) or len(through) < 9
    assert first == [0, 1, 2, 4, 5, 6, 7, 8]
    world.commit()
    assert not world.scheduler.warming
    assert world.account.ledger.balance() == 0


def test_a_branch_of_an_agent_is_no_prompt_of_a_warm_up() -> None:
    """Two prompts are waited for, however often the first one's agent rewrites its history."""
    value = {"warmup_updates": 1, "warmup_prompts": 2}
    world = World(make_config(schedule={"mode": "streaming"}, algorithm={"value": value}))
    (origin,) = world.issue()
    group, key = world.account.groups[origin.group_id], world.state.next_trajectory
    world.note(
        issued_again(
            group, group_id=world.state.next_group, position=-1, trajectory_ids=[key], seeds=[0]
        )
    )
    found = []
    for _ in range(2):
        for trajectory in world.running():
            world.lease(trajectory)
            world.chunk(trajectory, 2, "stop")
            world.reward(trajectory)
        found.append(world.scheduler.selector.warmup_set(2))
        world.issue()
    second = world.account.trajectories[key + 1]
    assert found == [None, [origin, second]]


@pytest.mark.parametrize("hot", [False, True])
def test_windows_bring_what_the_sampler_thought_before_them(hot: bool) -> None:
    """Five numbers, of all sampled tokens before the window; a hot one counts as certain. Answers
    bring their logprobs and marks."""
    fit = {"fit": "least_squares"}
    world = World(make_config(algorithm={"value": fit}, schedule={"batch_windows": 1}))
    (trajectory,) = world.fill(1)
    marks = [Mark("hot", 0, 1)] if hot else []
    world.chunk(trajectory, 4, "window", streams=Streams(marks=marks))
    prepared = world.take()
    assert prepared is not None
    (opening,) = policy_windows(prepared)
    assert opening.confidence == [0.0] * 5
    world.commit()
    world.fill(1)
    world.chunk(trajectory, 2, "stop")
    world.reward(trajectory)
    prepared = world.take()
    assert prepared is not None
    (window,) = policy_windows(prepared)
    assert window.confidence == [-0.5, 0.0, -1.5 if hot else -2.0, -0.5, -0.5]
    (value,) = value_trajectories(prepared)
    assert value.logprobs.tolist() == [-0.5] * 6
    assert value.marks == marks


@settings(deadline=None, max_examples=30)
@given(
    st.sampled_from(["synchronous", "windowed", "streaming"]),
    st.integers(1, 120),
    st.integers(0, 2),
    st.integers(0, 10_000),
)
def test_value_batches_are_whole_token_budgets_and_nothing_piles_up(
    mode: str, budget: int, warmup: int, seed: int
) -> None:
    """Each finished response once, as many budgets as are there and no more than the end of the
    response that fills the last; of those whose last window has left, less than a budget stays."""
    config = make_config(
        schedule={"mode": mode, "value_batch_tokens": budget},
        algorithm={"value": {"warmup_updates": warmup}},
    )
    for world, warming, lengths in _updates(config, seed):
        past = ("taken", "trained", "dropped")
        waiting = world.account.values.values()
        gone = [t for t in waiting if warming or all(w.state in past for w in t.windows)]
        left = sum(t.length for t in gone)
        assert left < budget
        full = warming and mode == "streaming" and not left
        if lengths and not full:
            budgets = sum(lengths) // budget
            assert budgets >= 1
            assert sum(lengths[:-1]) < budgets * budget

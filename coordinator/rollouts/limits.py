"""Limits of a trajectory's tokens and of an episode.

In: a trajectory, the configuration. Out: tokens that are left, by the key of the limit; the limit
that ends an episode. Promise: a lease ends at the nearest limit, so no trajectory exceeds one.
"""

from headrace.config.sections.run import RunConfig
from headrace.trajectory.trajectories import Trajectory


def tokens_left(trajectory: Trajectory, config: RunConfig) -> dict[str, int]:
    """Return the number of tokens left for the policy in this turn, by limit."""
    task, environment = config.task, config.environment
    written = trajectory.prefix + trajectory.sampled
    left = {"task.max_response_length": task.max_response_length - written}
    if environment is None:
        return left
    if environment.max_turn_tokens is not None:
        left["environment.max_turn_tokens"] = environment.max_turn_tokens - trajectory.turn_tokens
    if environment.max_context is not None:
        length = trajectory.opening.size + trajectory.length
        left["environment.max_context"] = environment.max_context - length
    return left


def limit_of_episode(trajectory: Trajectory, config: RunConfig) -> str | None:
    """Return the limit that ends an episode after an answer; None: it goes on."""
    environment, step = config.environment, trajectory.steps[-1]
    assert environment is not None
    told = trajectory.pieces[-1].turn if trajectory.pieces else -1
    left = tokens_left(trajectory, config) | {
        "environment.max_turns": environment.max_turns - step.turn,
        # An episode that goes on got an answer to read, unless there was no room for it.
        "environment.max_inserted": int(
            told == step.turn or not (step.turn or environment.is_agent)
        ),
    }
    if environment.episode_timeout_s is not None:
        spent = sum(step.seconds for step in trajectory.steps)
        left["environment.episode_timeout_s"] = int(spent < environment.episode_timeout_s)
    return next((name for name, amount in left.items() if amount <= 0), None)

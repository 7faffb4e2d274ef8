"""Names of metrics that hold a name of the user's."""

from headrace.metrics.registry import info_of, pattern_of


def test_what_an_environment_says_is_described_and_our_own_names_stay() -> None:
    assert info_of("environment/guesses_left").name == "environment/NAME"
    assert pattern_of("environment/turns") == "environment/turns"
    assert pattern_of("environment/step_s") == "environment/step_s"
    assert pattern_of("memory/reward-0") == "memory/NAME"
    assert pattern_of("gpu/learner-0") == "gpu/NAME"

"""VAPO's table in miniature (study 2): the full recipe, and the recipe without one part at a time.

On `graph_walk`, where one fatal step inside a long answer decides it, so that it matters which
token gets the blame. Eight responses to each of eight prompts in an update; 32 updates of the
policy.
Beside VAPO's rows: plain PPO (none of the parts), lambda 1 for the policy (no credit assignment
inside the answer but by the value at each token), and the critic-free recipes.
"""

from benchmarks.study import Arm, Study, main_of
from benchmarks.study_settings import GRAPH_WALK, PRETRAINING, small


def arm(
    name: str,
    *overrides: str,
    recipe: str = "vapo",
    pretraining: int | None = PRETRAINING,
    group: int = 8,
) -> Arm:
    """An arm on walks through graphs."""
    settings = (
        *small(pretraining=pretraining),
        *GRAPH_WALK,
        f"schedule.num_generations={group}",
        *overrides,
    )
    return Arm(name, f"recipes/algorithms/{recipe}.toml", settings)


PARTS = (
    arm("vapo"),
    arm("without value pretraining", pretraining=0),
    arm("without decoupled GAE", "algorithm.value.gae_lambda_value=0.95"),
    arm(
        "without length-adaptive GAE",
        "algorithm.advantages.length_adaptive_alpha=null",
        "algorithm.advantages.gae_lambda_policy=0.95",
    ),
    arm("without clip-higher", "algorithm.policy_loss.clip_ratio_high=0.2"),
    arm("without token-level loss", "algorithm.aggregate=sample_mean"),
    arm("without positive examples", "algorithm.penalties.positive_nll_coef=0"),
    arm("without group sampling", group=1),
)
OTHERS = (
    arm("ppo", recipe="ppo", pretraining=0, group=1),
    arm(
        "vapo, policy lambda 1",
        "algorithm.advantages.length_adaptive_alpha=null",
        "algorithm.advantages.gae_lambda_policy=1.0",
    ),
    arm("grpo", recipe="grpo", pretraining=None),
    arm("dapo", recipe="dapo", pretraining=None),
    arm("rloo", recipe="rloo", pretraining=None),
    arm("reinforce++", recipe="reinforcepp", pretraining=None, group=1),
)
STUDY = Study(
    "vapo-parts",
    arms=(*PARTS, *OTHERS),
    seeds=3,
    reduced_arms=tuple(arm.name for arm in (*PARTS, *OTHERS)),
    reduced_seeds=2,
    reference="vapo",
)


def main(argv: list[str]) -> int:
    """Run what is missing, print the table."""
    return main_of(STUDY, __doc__, argv)

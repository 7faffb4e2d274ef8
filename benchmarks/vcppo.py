"""VC-PPO's failure and cure (study 3): a critic that is wrong by position, one lambda for both.

The value model of `low` arms begins as a reward model that was trained on the end of answers alone
(`benchmarks.reward_model`), as in the paper: it scores early tokens low and later ones higher. The
advantage adds up these steps, most of them at early tokens, so that whatever the policy begins with
looks good; and with lambda 0.95 the reward itself hardly reaches the first tokens of a long answer.
Short guesses gain by that, written-out steps lose. All problems have six terms or more: written
out, 45 tokens and up.

Cures, alone and together: value pretraining, and lambda 1 for the value model. `ppo` begins with a
new head that says 0. Then, from the reward model and with both cures, a sweep over the policy's
lambda and one over the updates of pretraining (64 trajectories and four passes each). In
`low, pretraining` the pretraining has the run's lambda of 0.95 too.

Rows also keep `early_positions`: what the value model said, and the advantages that came of it, by
tenth of the answer over the policy's first updates (`benchmarks.positions`).
"""

from benchmarks.positions import early_positions
from benchmarks.reward_model import MIN_TERMS, write_reward_model
from benchmarks.study import main_of
from benchmarks.study_plan import Arm, Column, Row, Study
from benchmarks.study_settings import PRETRAINING, small
from headrace.install import ROOT

CRITIC = "runs/critics/reward-model"
"""Relative to the source tree; made when the study is run."""
SLOW_CRITIC = "learner.value.lr=2e-4"
"""Twice the policy's, as in VAPO's table 1."""
DECOUPLED = "algorithm.value.gae_lambda_value=1.0"


def arm(name: str, *overrides: str, pretraining: int = PRETRAINING, low: bool = True) -> Arm:
    """An arm of PPO on the demonstration's task, without its shortest problems."""
    critic = (f"model.critic_path={CRITIC}",) if low else ()
    settings = (
        *small(pretraining=pretraining, prompts=512),
        f"task.min_terms={MIN_TERMS}",
        SLOW_CRITIC,
        *critic,
        *overrides,
    )
    return Arm(name, "recipes/algorithms/ppo.toml", settings)


CURES = (
    arm("low", pretraining=0),
    arm("low, pretraining"),
    arm("low, decoupled", DECOUPLED, pretraining=0),
    arm("low, both cures", DECOUPLED),
    arm("ppo", pretraining=0, low=False),
)
LAMBDAS = tuple(
    arm(f"lambda {lam}", DECOUPLED, f"algorithm.advantages.gae_lambda_policy={lam}")
    for lam in ("0.90", "0.98", "0.99", "1.00")
)
STEPS = tuple(arm(f"pretraining {steps}", DECOUPLED, pretraining=steps) for steps in (2, 4, 24, 48))
ARMS = (*CURES, *LAMBDAS, *STEPS)


def make_reward_model() -> None:
    """The value model that `low` arms begin with."""
    write_reward_model(ROOT / "recipes" / "models" / "chain-sums-cold", ROOT / CRITIC)


def shortest(row: Row) -> float:
    """The least mean length that an evaluation found."""
    return float(min(length for *_, length in row["evaluations"]))


STUDY = Study(
    "vcppo",
    arms=ARMS,
    seeds=3,
    reduced_arms=tuple(arm.name for arm in CURES),
    reduced_seeds=2,
    reference="ppo",
    prepare=make_reward_model,
    facts=early_positions,
    columns=(Column("shortest on the way", shortest, ".0f"),),
)


def main(argv: list[str]) -> int:
    """Run what is missing, print the table."""
    return main_of(STUDY, __doc__, argv)

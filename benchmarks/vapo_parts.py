"""VAPO's table in miniature (study 2): the full recipe, and the recipe without one part at a time.

In the long regime, on the recipe `long-answers`: a register is stepped line by line, six to 24
steps and some of them written twice, so that an answer takes 70 to 600 tokens and one wrong step
spoils it. With lambda 0.95 next to nothing of the reward reaches the first lines, and the value
model has to carry it there. Four prompts of eight responses in an update, whole answers in PPO's
lockstep; 24 updates of the policy. Beside VAPO's rows: plain PPO (none of the parts), and lambda 1
for the policy (no credit assignment inside the answer but by the value at each token).

Not the paper's: alpha of the length-adaptive lambda is 0.5 where the paper has 0.05 for thousands
of tokens, and the value model begins with a new head, not as a reward model.
"""

from benchmarks.study import main_of
from benchmarks.study_plan import Arm, Study
from benchmarks.study_settings import RESOLVING

RECIPE = "recipes/long-answers.toml"
BATCH, UPDATES = 32, 24
PRETRAINING = 12
"""Updates of the value model alone."""
EVERY = PRETRAINING
"""Updates between evaluations. With pretraining or without, they are of the policy at the start,
after 12 updates and after 24."""
LONG = (
    "schedule.mode=synchronous",
    f"schedule.batch_windows={BATCH}",
    "schedule.max_in_play=null",
    "learner.context=full",
    "task.min_terms=6",
    "task.max_terms=24",
    "task.max_response_length=640",
    "learner.policy.minibatches=2",
    "learner.value.minibatches=2",
    f"evaluation.num_prompts={RESOLVING}",
    f"evaluation.every_updates={EVERY}",
    "stop.train_time_s=1200",
    "checkpoint.every_updates=1000",
)
VAPO = (
    "algorithm.name=vapo",
    "algorithm.kl=null",
    "algorithm.aggregate=token_mean",
    "algorithm.advantages.gae_lambda_policy=0.0",
    "algorithm.advantages.length_adaptive_alpha=0.5",
    "algorithm.value.gae_lambda_value=1.0",
    "algorithm.policy_loss.clip_ratio_high=0.28",
    "algorithm.policy_loss.dual_clip=null",
    "algorithm.penalties.positive_nll_coef=0.1",
)


def fixed(lam: str) -> tuple[str, str]:
    """One lambda of the policy for answers of all lengths."""
    return (
        "algorithm.advantages.length_adaptive_alpha=null",
        f"algorithm.advantages.gae_lambda_policy={lam}",
    )


def arm(name: str, *overrides: str, pretraining: int = PRETRAINING, group: int = 8) -> Arm:
    """An arm on the long answers."""
    settings = (
        *LONG,
        *VAPO,
        f"schedule.num_generations={group}",
        f"algorithm.value.warmup_updates={pretraining}",
        f"stop.updates={pretraining + UPDATES}",
        # The policy does not move while the value model is pretrained: one evaluation is enough.
        f"evaluation.before={'false' if pretraining else 'true'}",
        *overrides,
    )
    return Arm(name, RECIPE, settings)


PLAIN = (
    "algorithm.value.gae_lambda_value=0.95",
    *fixed("0.95"),
    "algorithm.policy_loss.clip_ratio_high=0.2",
    "algorithm.aggregate=sample_mean",
    "algorithm.penalties.positive_nll_coef=0",
)
"""What is left without the parts."""
ARMS = (
    arm("vapo"),
    arm("without value pretraining", pretraining=0),
    arm("without decoupled GAE", "algorithm.value.gae_lambda_value=0.95"),
    arm("without length-adaptive GAE", *fixed("0.95")),
    arm("without clip-higher", "algorithm.policy_loss.clip_ratio_high=0.2"),
    arm("without token-level loss", "algorithm.aggregate=sample_mean"),
    arm("without positive examples", "algorithm.penalties.positive_nll_coef=0"),
    arm("without group sampling", group=1),
    arm("ppo", *PLAIN, pretraining=0, group=1),
    arm("vapo, policy lambda 1", *fixed("1.0")),
)
STUDY = Study(
    "vapo-parts",
    arms=ARMS,
    seeds=3,
    reduced_arms=("vapo", "without value pretraining", "without decoupled GAE", "ppo"),
    reduced_seeds=2,
    reference="vapo",
    jobs=1,
)


def main(argv: list[str]) -> int:
    """Run what is missing, print the table."""
    return main_of(STUDY, __doc__, argv)

"""What the studies of algorithms have in common: small batches, few updates, one core a run."""

BATCH = 64
POLICY_UPDATES = 32
PRETRAINING = 8
"""Updates of the value model alone, 64 trajectories and four passes each."""
RESOLVING = 1024
"""Prompts of an evaluation that is to tell small differences: 0.03 to 0.04 between two runs, at
95 %, and 0.02 between the means of three and three."""


def small(
    *,
    pretraining: int | None,
    updates: int = POLICY_UPDATES,
    batch: int = BATCH,
    prompts: int = 256,
    every: int = 8,
) -> tuple[str, ...]:
    """Overrides of a small run: `updates` of the policy after `pretraining` of the value model
    (None: a recipe without one), evaluated on `prompts` prompts after `every` updates."""
    settings = (
        "generator.engine=torch",
        f"generator.max_num_seqs={batch}",
        f"schedule.batch_windows={batch}",
        f"evaluation.num_prompts={prompts}",
        f"evaluation.every_updates={every}",
        f"stop.updates={updates + (pretraining or 0)}",
        "stop.train_time_s=1200",
        "checkpoint.every_updates=1000",
    )
    if pretraining is None:
        return settings
    return (
        *settings,
        f"algorithm.value.warmup_updates={pretraining}",
        "algorithm.value.warmup_epochs=4",
        "algorithm.value.warmup_explained_variance=null",
    )


GRAPH_WALK = (
    "model.path=../models/graph-walk-cold",
    "task.kind=graph_walk",
    "task.max_terms=16",
    "task.max_prompt_length=130",
    "task.max_response_length=240",
    "reward.kind=function",
    "reward.function=tasks.graph_walk:score",
    "reward.answer_marker=null",
)
"""A search whose steps are all alike to the starting policy: 0.6 nats a token to lose; for
recipes/algorithms."""

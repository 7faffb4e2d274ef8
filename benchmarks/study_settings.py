"""What the studies of algorithms have in common: small batches, few updates, one core a run."""

BATCH = 64
POLICY_UPDATES = 32
PRETRAINING = 8
"""Updates of the value model alone, 64 trajectories and four passes each."""


def small(*, pretraining: int | None, updates: int = POLICY_UPDATES) -> tuple[str, ...]:
    """Overrides of a small run: `updates` of the policy after `pretraining` of the value model
    (None: a recipe without one)."""
    settings = (
        "generator.engine=torch",
        f"generator.max_num_seqs={BATCH}",
        f"schedule.batch_windows={BATCH}",
        "evaluation.num_prompts=256",
        "evaluation.every_updates=8",
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


TRACKING = (
    "model.path=../models/tracking-cold",
    "task.kind=tracking",
    "task.max_terms=24",
    "task.max_prompt_length=80",
    "task.max_response_length=200",
)
"""The task on which credit assignment inside the answer matters, for recipes/algorithms."""

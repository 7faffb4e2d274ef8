"""The learner: batches of windows in, gradients, and new weights out.

The mathematics comes first and stands alone: its files import torch and one another, take tensors
and floats, and know neither DeepSpeed nor configuration. To read it, in this order:

    segments          the packed layout: windows laid end to end
    advantages        GAE, EGAE at a cut, length-adaptive lambda, whitening
    groups            critic-free: each response against the others to its prompt
    targets           what the critic should have said
    ratios            how far the policy moved, what a stale token is worth
    hot_tokens        what the policy learns from the hot first tokens of FIRE sampling
    policy_losses     the clipped surrogate; squared error of values, clipped or not
    penalties         KL, entropy, likelihood of right answers, overlong penalty
    aggregation       from token losses to one number that no split of the batch changes
    diagnostics       sums to be added over micro-batches and ranks
    diagnostic_table  how each figure is made from the sums (headrace.metrics.registry says what it
    means)

`learner.algorithms.registry` composes these into a recipe; `learner.updates.update` calls the
composition;
`learner.loop` is the process.
"""

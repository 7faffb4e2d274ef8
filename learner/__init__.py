"""The learner: batches of windows in, gradients, and new weights out.

The mathematics comes first and stands alone: its files import torch and one another, take tensors
and floats, and know neither DeepSpeed nor configuration. To read it, in this order:

    batching/segments              the packed layout: windows laid end to end
    algorithms/advantages          GAE, EGAE at a cut, length-adaptive lambda, whitening
    batching/group_statistics      critic-free: each response against the others to its prompt
    algorithms/value_targets       what the critic should have said
    algorithms/ratios              how far the policy moved, what a stale token is worth
    algorithms/fire                what the policy learns from hot first tokens of FIRE sampling
    algorithms/policy_losses       the clipped surrogate; squared error of values, clipped or not
    algorithms/penalties           KL, entropy, likelihood of right answers, overlong penalty
    algorithms/aggregation         from token losses to one number that no split changes
    updates/token_statistics       sums to be added over micro-batches and ranks
    updates/token_statistics_table how each figure is made from the sums

`algorithms.registry` composes these into a recipe, `updates.update` calls the composition,
`learner.loop` is the process.
"""

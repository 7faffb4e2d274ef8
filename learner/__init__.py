"""The learner: batches of windows in, gradients, and new weights out.

The mathematics comes first and stands alone: its files import torch and one another, take tensors
and floats, and know neither DeepSpeed nor configuration. To read it, in this order:

    batching/segments              the packed layout: windows laid end to end
    algorithms/advantages          GAE, EGAE at a cut, length-adaptive lambda, whitening
    batching/group_statistics      critic-free: each response against the others to its prompt
    algorithms/value_targets       the critic's targets: returns and lambda returns
    algorithms/ratios              the policy's ratios, and weights of stale tokens
    algorithms/fire                loss corrections for hot first tokens of FIRE sampling
    algorithms/policy_losses       the clipped surrogate; squared error of values, clipped or not
    algorithms/penalties           KL, entropy, overlong penalty
    algorithms/aggregation         from token losses to one number that no split changes
    updates/token_statistics       sums to be added over micro-batches and ranks
    updates/token_statistics_table the formula of each figure from the sums

`algorithms.registry` composes these into a recipe, `updates.update` calls the composition,
`learner.loop` is the process.
"""

"""Reward models: trained here, and scored by whoever needs a reward.

Reading order: `card.py` (what a model's folder says of itself), `question.py` (what a pairwise
model reads), `encoding.py` (texts to token ids and line ends), `scorer.py` (a trained model's
scores); then `examples.py` with where they come from (`files.py`, `groups.py`, `slips.py`),
`losses.py`, `objectives.py` (what goes through the model, and the loss of it), `training.py` (the
loop), `figures.py`, `report.py` and `plot.py`.

`scorer` imports nothing of the learner, so that reward workers may load it.
"""

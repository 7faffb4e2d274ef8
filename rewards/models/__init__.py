"""Reward models: training and scoring.

Reading order: `card.py` (what a model's folder says of itself), `pairwise_prompt.py` (what a
pairwise model reads), `encoding.py` (texts to token ids and line ends), `scorer.py` (a trained
model's scores); then `training/`: `examples.py` with where they come from, `objectives.py` (what
goes through the model, and the loss of it), `train.py` (the loop), `report.py`.

`scorer` imports nothing of the learner, so that reward workers may load it.
"""

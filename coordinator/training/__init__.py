"""The coordinator's side of the learner: batches out, updates in."""

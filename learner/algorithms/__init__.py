"""The mathematics: pure functions of tensors, and the slots they fill."""

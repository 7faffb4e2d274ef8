"""One update: forward passes, advantages, losses, optimizer steps, metrics."""

"""One update: forward, advantages, losses, steps, what it reports."""

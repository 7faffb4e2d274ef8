"""A batch of streams and borders to packs of tokens."""

"""The process around the updates: messages, checkpoints, publishing."""

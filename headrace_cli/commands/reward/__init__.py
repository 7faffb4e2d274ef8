"""Commands about rewards, judges and reward models."""

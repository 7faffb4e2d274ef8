"""Studies of algorithms: arms, seeds, settings."""

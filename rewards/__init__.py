"""Finished or partial trajectories in, rewards out."""

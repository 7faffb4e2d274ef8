"""Trajectories, groups and lines to the reward workers, scores back."""

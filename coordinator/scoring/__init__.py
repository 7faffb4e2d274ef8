"""Score requests for trajectories, groups and lines, and their scores."""

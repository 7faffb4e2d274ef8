"""Choice of the next prompts, and leases of their trajectories to generators."""

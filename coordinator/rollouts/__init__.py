"""Generation, episodes and evaluations: leases out, chunks in."""

"""Generation and evaluation: leases out, chunks in."""

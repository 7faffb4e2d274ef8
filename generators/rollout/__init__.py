"""A generator's loop: leases in, chunks out, weights taken in flight."""

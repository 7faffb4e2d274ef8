"""Loop of a generator: leases in, chunks out, weights loaded in flight."""

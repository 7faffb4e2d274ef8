"""What views read of a run, cached, through `storage.queries` alone."""

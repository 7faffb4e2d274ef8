"""Small models made here: written weights, cold starts, shapes."""

"""The reward worker: requests in, scores back, from killable children."""

"""Users' functions as verifiers."""

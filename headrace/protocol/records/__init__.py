"""Records of the journal."""

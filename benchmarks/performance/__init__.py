"""How fast a part or the whole is."""

"""State, its snapshots, and the recorder that writes records to disk."""

"""State of the coordinator, its snapshots, and the recorder that writes records to disk."""

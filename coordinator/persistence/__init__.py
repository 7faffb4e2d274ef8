"""State of the coordinator, its snapshots, and the recorder of records."""

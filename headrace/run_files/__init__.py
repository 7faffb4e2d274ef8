"""What a run's folder holds besides its store."""

"""Files of a run's folder besides its store."""

"""Names, meanings and healthy ranges of metrics."""

"""One file per migration, numbered in order."""

"""Namespaces, Landlock, seccomp: how a cell is closed."""

"""Command line, its commands, and the launch of processes; the package above all others."""

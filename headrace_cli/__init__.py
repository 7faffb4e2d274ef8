"""Command line, its commands, and the launch of processes; the topmost package."""

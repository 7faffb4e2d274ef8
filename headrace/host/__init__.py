"""The machine: hardware, disk, processes, memory, what is installed."""

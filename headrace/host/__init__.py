"""The machine: hardware, disk, processes, memory, what is installed, code of users."""

"""The roof: the command line, its commands, and how processes are started."""

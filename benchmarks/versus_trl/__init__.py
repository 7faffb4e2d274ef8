"""TRL's trainer beside this one."""

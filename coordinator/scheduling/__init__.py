"""Which windows may begin, and which train next: one scheduler per mode."""

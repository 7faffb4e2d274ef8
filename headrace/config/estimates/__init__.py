"""What a configuration needs of memory, from its sizes."""

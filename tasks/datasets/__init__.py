"""Dataset files and conversations to rows."""

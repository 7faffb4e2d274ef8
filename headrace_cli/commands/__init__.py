"""What each subcommand does: one module a noun, imported only when the command is used."""

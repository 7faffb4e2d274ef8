"""The subcommands: one module per noun, imported only when its command is used."""

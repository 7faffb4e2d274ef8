"""How reward models are trained and measured."""

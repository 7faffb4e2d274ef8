"""Policy and value model: loading, forward passes, engines."""

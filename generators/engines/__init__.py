"""What samples tokens, behind the contract of `generators.engine`."""

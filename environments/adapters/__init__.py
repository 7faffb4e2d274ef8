"""Environments written for other libraries, unchanged, as environments of ours. Each adapter is a
function of a recipe's options that returns what makes one episode after the other."""

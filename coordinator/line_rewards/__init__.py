"""Where the lines of an answer end, and the scores of each."""

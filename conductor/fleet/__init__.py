"""Worker groups: the workers of a plan, started as a whole or not at all."""

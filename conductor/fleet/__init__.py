"""Worker groups: the processes of a role, started as a whole or not at all."""

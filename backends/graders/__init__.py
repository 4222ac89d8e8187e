"""What gives rewards: one file for each kind."""

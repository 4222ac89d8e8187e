"""What plays the rollouts of a lease: one file for each kind."""

"""Where metrics go when they leave the process: one file for each kind."""

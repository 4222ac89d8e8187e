"""Where the record of ownership is kept: one file for each kind."""

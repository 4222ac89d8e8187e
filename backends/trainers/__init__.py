"""What steps: a module for each trainer."""

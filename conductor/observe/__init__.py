"""What people and machines see of a run: progress, log, metrics, the lag of the event loop."""

"""What ``conductor init`` writes: a job and its task, which run as they are."""

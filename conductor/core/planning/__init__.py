"""Where the workers of a job run: a pure function of the job and of what there is, before anything is launched."""

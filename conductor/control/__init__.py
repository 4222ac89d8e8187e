"""A socket in the folder of a run: whoever may write there may ask where the run stands, and ask it to stop or save."""

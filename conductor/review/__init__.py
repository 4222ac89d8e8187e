"""What a record tells of a run: of one sample, of one step, of where time went. Nothing is started."""

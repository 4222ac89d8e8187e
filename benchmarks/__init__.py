"""One file for each question, with the peer or the bound measured in the same run."""

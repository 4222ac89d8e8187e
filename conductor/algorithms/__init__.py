"""Pure arithmetic on the rewards of one group: rewards in, advantages out."""

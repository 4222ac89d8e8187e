"""Pure arithmetic on rewards: rewards in, advantages out. One module an algorithm; ``table.py`` names them."""

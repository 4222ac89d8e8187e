"""Texts that are compared to the letter."""

import re


def exactly(text: str, *, words: str = "...") -> str:
    """Return a pattern, for ``pytest.raises``, that this text alone matches; ``words`` stands for any."""
    return f"^{re.escape(text).replace(re.escape(words), '.+')}$"

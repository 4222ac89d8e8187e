"""Bugs that no test finds, each with the reason why that is no hole: it changes nothing, or only speed or words."""

from collections.abc import Mapping

SURVIVORS: Mapping[str, Mapping[str, str]] = {}
"""Module -> name of the mutant -> why it may survive."""

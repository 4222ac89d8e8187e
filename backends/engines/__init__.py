"""Engines: what generates. ``pool`` makes one inference controller of many."""

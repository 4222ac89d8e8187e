"""Verbs: the controller. It imports protocols only; everything physical is behind a port.

``await Conductor.run(cfg)`` is the one entry point.
"""

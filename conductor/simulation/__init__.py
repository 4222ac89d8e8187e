"""What a job would do, found out by running the real controller in a simulated world, and what could go wrong.

``life`` runs a job once. ``report`` measures it for people, beside ``bounds``. ``search`` runs many small jobs of
``shapes`` under fault plans, and asks ``laws`` of each.
"""

"""Nouns: the messages, errors and ports that the controller and its adapters share.

Nothing here knows a backend. Modules need the standard library and msgspec; ``aio`` alone knows anyio.
"""

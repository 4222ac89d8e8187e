"""The torch engine behind the HTTP interfaces of the servers that people run: ``conductor engine``.

``web`` speaks HTTP, ``served`` is the engine as a server sees it, ``vllm``, ``sglang`` and ``openai`` are the
interfaces, ``faults`` lets chosen calls go wrong, ``program`` puts them together.
"""

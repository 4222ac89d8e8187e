"""An engine that is a server: the port on our side, HTTP on the other.

``connection`` carries requests and says what their failures mean, ``dialect`` is what an interface must offer, ``vllm``
and ``sglang`` are two, ``engine`` is the port over one, ``calls`` knows what runs, ``trust`` which weights were seen to
be held, ``files`` writes weights where a server reads them, ``opening`` and ``server`` attach to one or start it.
"""

"""Packages that an adapter needs and that a plain installation does not have."""

import importlib.util

from protocols.errors import Problem


def find_missing(module: str, *, field: str, kind: str, extra: str) -> list[Problem]:
    """Return a problem where a package is not installed; it is looked for, not imported.

    Args:
        module: The package's top module.
        field: Where the job names the adapter, ``prompts.kind``.
        kind: The adapter.
        extra: The project's extra that brings the package.
    """
    if importlib.util.find_spec(module) is not None:
        return []
    why, mend = f"it needs the module '{module}'", f"pip install 'conductor-rl[{extra}]'"
    return [Problem(field=field, value=repr(kind), why=why, mend=mend)]

"""One self-contained page: the data of a report, a chart library, and what draws the one with the other."""

import importlib.util
from importlib.resources import files
from pathlib import Path

import msgspec

from conductor.review.report import Report
from protocols.errors import UserError

_MISSING = "a report needs the chart library 'plotly', which is not installed: pip install 'conductor-rl[report]'"


def chart_library() -> str:
    """Return the script of the chart library, as its package carries it.

    Raises:
        UserError: It is not installed.
    """
    found = importlib.util.find_spec("plotly")  # not imported: of the package only this file is needed
    for folder in (found and found.submodule_search_locations) or ():
        script = Path(folder) / "package_data" / "plotly.min.js"
        if script.is_file():
            return script.read_text(encoding="utf-8")
    raise UserError(_MISSING)


def page(report: Report, library: str) -> str:
    """Return a page that needs nothing but itself.

    Args:
        report: What it shows.
        library: The script of the chart library.
    """
    assets = files("conductor.review") / "assets"
    # no end tag and no comment of HTML may stand in a script: text of a model could be any
    data = msgspec.json.encode(report).decode().replace("<", "\\u003c")
    parts = {
        "TITLE": " and ".join(run.name for run in report.runs).replace("&", "&amp;").replace("<", "&lt;"),
        "STYLE": (assets / "page.css").read_text(encoding="utf-8"),
        "LIBRARY": library.replace("</script", "<\\/script"),
        "DATA": data,
        "DRAW": (assets / "page.js").read_text(encoding="utf-8"),
    }
    pieces = (assets / "page.html").read_text(encoding="utf-8").split("@@")
    return "".join(parts[piece] if number % 2 else piece for number, piece in enumerate(pieces))

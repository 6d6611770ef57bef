"""`report.html`: a run as one self-contained page, built from the run folder's files alone.

Whatever piece a run does not have is left out of its page. Every text of a model, an environment or a file is escaped
by the template, and the page's policy lets no script run but the page's own, by its hash.
"""

import base64
import hashlib
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from deploy.report.read import read_controls, read_run
from deploy.report.sections import page_values
from deploy.runs import RunFolder, replace_file

HERE = Path(__file__).parent
CONTROLS = HERE.parent.parent / "docs" / "results.json"
"""The committed controls that a result is set beside (`read.read_controls` tells the form)."""


def build(run: RunFolder, controls: Path = CONTROLS) -> Path:
    """Write the run's report.html and return its path."""
    replace_file(run.report, render(run, controls))
    return run.report


def render(run: RunFolder, controls: Path = CONTROLS) -> str:
    """The page as text."""
    script = (HERE / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("page.html").render(
        page_values(read_run(run), read_controls(controls)),
        style=Markup((HERE / "page.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_hash=f"sha256-{digest}",
    )

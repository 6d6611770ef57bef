"""Prompt templates: jinja2 files in a sandbox, whose mistakes are told by file and line before anything is played."""

import traceback
from collections.abc import Sequence
from pathlib import Path

from jinja2 import StrictUndefined, Template, TemplateError, TemplateSyntaxError, meta, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from protos.errors import ConfigError

SHIPPED = Path(__file__).parent / "templates"


class PromptTemplate:
    """A template that may print the given `variables`, and nothing else."""

    def __init__(self, name: str, variables: Sequence[str]) -> None:
        """`name`: of a shipped template, or the path of a user's own, ending in .jinja.

        Raises ConfigError, with file and line, where there is none, its syntax is wrong, or it names an unknown variable.
        """
        self._path = _find(name)
        self._template = _compile(self._path, variables)

    def __call__(self, **values: object) -> str:
        """The text, without white space at its ends. Raises ConfigError, with file and line, where it cannot be made."""
        try:
            return self._template.render(values).strip()
        except (TemplateError, TypeError, ArithmeticError, LookupError) as error:
            lines = [at.lineno for at in traceback.extract_tb(error.__traceback__) if at.filename == str(self._path)]
            place = f"{self._path}, line {lines[-1]}" if lines else str(self._path)
            raise ConfigError(f"{place}: {error}") from error


def _find(name: str) -> Path:
    path = Path(name) if name.endswith(".jinja") else SHIPPED / f"{name}.jinja"
    if not path.is_file():
        shipped = ", ".join(sorted(file.stem for file in SHIPPED.glob("*.jinja")))
        raise ConfigError(f"no template {name!r}: give the path of a .jinja file, or one of {shipped}")
    return path


def _compile(path: Path, variables: Sequence[str]) -> Template:
    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    source = path.read_text()
    try:
        tree = environment.parse(source, filename=str(path))
        code = environment.compile(source, filename=str(path))
    except TemplateSyntaxError as error:
        raise ConfigError(f"{path}, line {error.lineno}: {error.message}") from error
    names = list(tree.find_all(nodes.Name))
    known = {*variables, *(name.name for name in names if name.ctx != "load")}
    unknown = meta.find_undeclared_variables(tree) - known
    for name in names:
        if name.name in unknown:
            raise ConfigError(f"{path}, line {name.lineno}: there is no {name.name!r}, only {', '.join(variables)}")
    return Template.from_code(environment, code, environment.make_globals(None))

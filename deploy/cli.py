"""The command `tandem`: arguments are parsed first, everything heavy is imported within the command that needs it."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from protos.errors import ConfigError, DataError, TandemError

if TYPE_CHECKING:
    from deploy.config import RunConfig
    from deploy.console import Console
    from deploy.runs import RunFolder

INTERRUPTED = 130
"""The exit code of Ctrl-C, as shells count it: 128 + SIGINT."""


class Commands(TyperGroup):
    """Words expected failures as one line on stderr with their exit code; unexpected ones keep their traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            refuse("interrupted", INTERRUPTED)
        except TandemError as error:
            refuse(str(error), error.exit_code)
        except OSError as error:
            _refuse_disk(error)
            raise
        except ValueError as error:
            _refuse_settings(error)
            raise


app = typer.Typer(
    cls=Commands,
    help="Train a language agent that acts, and predicts what its actions do, from the same rollouts.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
bench = typer.Typer(help="Measure speed against the honest alternative, side by side.", no_args_is_help=True)
app.add_typer(bench, name="bench")

Arguments = Annotated[
    list[str] | None, typer.Argument(metavar="[CONFIG.toml] [key=value ...]", show_default=False, help="Settings.")
]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[key=value ...]", show_default=False, help="Settings.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress.")]
Trained = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint", metavar="RUN", help="A run or checkpoint folder.", show_default="warm-started quickly"
    ),
]
Runs = Annotated[Path, typer.Option("--runs", metavar="DIR", help="Where run folders are kept.")]


@app.command()
def train(
    arguments: Arguments = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="RUN", help="Go on with a run from its last checkpoint.")
    ] = None,
    runs: Runs = Path("runs"),
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="The run's folder.", show_default="date, config, seed")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Train an agent: warm start, reinforcement learning with world modelling, evaluation before, during and after."""
    from deploy.console import Console

    console = Console(quiet=quiet)
    path, overrides = split_arguments(arguments)
    if resume is not None and (path is not None or name is not None):
        raise ConfigError("--resume takes its config and its name from the run: give neither, only key=value")
    config, run = _resumed(resume, runs, overrides) if resume is not None else _started(path, overrides, runs, name)
    with run:
        console.note(f"run {run.path}")
        try:
            from deploy.train import train as train_agent

            summary = train_agent(config, run, console)
        except KeyboardInterrupt:
            refuse(f"stopped; go on with: tandem train --resume {run.path}", INTERRUPTED)
        _finish(run, summary, console)


@app.command(name="eval")
def evaluate(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A run, a checkpoint folder, or a Hugging Face model, folder or hub name."
        ),
    ],
    overrides: Overrides = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", metavar="FILE", help="Settings of a model that no run made.", show_default="pretrained.toml"
        ),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Evaluate a policy on held-out games: a run's, or any Hugging Face causal language model's."""
    from deploy.console import Console

    only_overrides(overrides)
    console = Console(quiet=quiet or as_json)
    from deploy.evaluate import evaluate as evaluate_checkpoint

    _print_result(evaluate_checkpoint(model, overrides or [], console, config), as_json, console)


@app.command()
def report(run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]) -> None:
    """Build a run's report.html again from its files."""
    from deploy.report import build
    from deploy.runs import RunFolder

    typer.echo(build(RunFolder.open(run)))


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN ...", help="Finished runs, of any configs and seeds.")],
) -> None:
    """Print finished runs side by side as JSON, seeds averaged: the form of docs/results.json."""
    from deploy.compare import compare as compare_runs

    typer.echo(json.dumps(compare_runs(runs), indent=2))


@app.command(name="config")
def show_config(arguments: Arguments = None) -> None:
    """Print the resolved settings as TOML, each with what it means."""
    from deploy.config import RunConfig
    from deploy.settings import dump, load

    typer.echo(dump(load(RunConfig, *split_arguments(arguments)), comments=True), nl=False)


@bench.command(name="env")
def bench_env(as_json: Json = False, quiet: Quiet = False) -> None:
    """Environment steps a second, beside the real engine's."""
    _benchmark("env", as_json, quiet)


@bench.command(name="rollout")
def bench_rollout(checkpoint: Trained = None, as_json: Json = False, quiet: Quiet = False) -> None:
    """Generated tokens a second, beside transformers' own generate."""
    _benchmark("rollout", as_json, quiet, checkpoint=_existing(checkpoint))


@bench.command(name="learner")
def bench_learner(checkpoint: Trained = None, as_json: Json = False, quiet: Quiet = False) -> None:
    """Training tokens a second, beside a bare torch loop; the world-model term's added time and memory."""
    _benchmark("learner", as_json, quiet, checkpoint=_existing(checkpoint))


def _benchmark(name: str, as_json: bool, quiet: bool, **settings: Any) -> None:
    from importlib import import_module

    from deploy.bench.figures import COLUMNS, rows
    from deploy.console import Console

    console = Console(quiet=quiet or as_json)
    result = import_module(f"deploy.bench.{name}").run(console, **settings)
    if as_json:
        _print_result(result, as_json, console)
    else:
        console.table(rows(name, result), columns=COLUMNS)


def split_arguments(arguments: Sequence[str] | None) -> tuple[Path | None, list[str]]:
    """The config file, where one is given, and the overrides. An argument with "=" is an override."""
    overrides = [argument for argument in arguments or () if "=" in argument]
    files = [argument for argument in arguments or () if "=" not in argument]
    if len(files) > 1:
        raise ConfigError(f"{files[1]!r} is neither a setting (key=value) nor the config, which is {files[0]}")
    return (Path(files[0]) if files else None), overrides


def _existing(checkpoint: Path | None) -> Path | None:
    if checkpoint is not None and not checkpoint.is_dir():
        raise DataError(f"no run or checkpoint at {checkpoint}")
    return checkpoint


def only_overrides(arguments: Sequence[str] | None) -> None:
    file, _ = split_arguments(arguments)
    if file is not None:
        raise ConfigError(f"{str(file)!r} is not a setting: write dotted.key=value")


def refuse(message: str, code: int) -> NoReturn:
    print(f"tandem: {message}", file=sys.stderr)
    raise SystemExit(code)


def _started(path: Path | None, overrides: list[str], runs: Path, name: str | None) -> "tuple[RunConfig, RunFolder]":
    from deploy.config import RunConfig
    from deploy.runs import RunFolder, default_name
    from deploy.settings import dump, load

    config = load(RunConfig, path, overrides)
    name = name or default_name(path.stem if path is not None else config.name, config.seed)
    return config, RunFolder.create(runs, name, dump(config, comments=True))


def _resumed(resume: Path, runs: Path, overrides: list[str]) -> "tuple[RunConfig, RunFolder]":
    from deploy.config import RunConfig
    from deploy.runs import RunFolder
    from deploy.settings import dump, load

    folder = runs / resume if not resume.exists() and (runs / resume).is_dir() else resume
    config = load(RunConfig, RunFolder.open(folder).config, overrides)
    run = RunFolder.open(folder, write=True)
    if overrides:
        run.write(run.config, dump(config, comments=True))
    return config, run


def _finish(run: "RunFolder", summary: dict[str, Any], console: "Console") -> None:
    from deploy.report import build

    run.write_summary(summary)
    pairs, rest = before_and_after(summary)
    if pairs:
        console.table(pairs, title=f"run {run.path.name}", columns=("", "before", "after"))
    console.table(rest, title="" if pairs else f"run {run.path.name}")
    console.note(f"report: {build(run)}")


def _print_result(result: dict[str, Any], as_json: bool, console: "Console") -> None:
    from deploy.runs import strict

    if as_json:
        typer.echo(json.dumps(strict(result), allow_nan=False))
    else:
        console.table(summary_rows(result))


def summary_rows(result: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """A nested result as (name, value) rows; an estimate with its interval takes one."""
    rows: list[tuple[str, Any]] = []
    for key, value in result.items():
        if isinstance(value, dict) and "mean" in value:
            rows.append((prefix + key, _estimate(value)))
        elif isinstance(value, dict):
            rows.extend(summary_rows(value, f"{prefix}{key}."))
        elif isinstance(value, list):
            rows.append((prefix + key, ", ".join(map(str, value))))
        else:
            rows.append((prefix + key, "-" if value is None else value))
    return rows


def before_and_after(summary: dict[str, Any]) -> tuple[list[tuple[str, Any, Any]], list[tuple[str, Any]]]:
    """The rows of a summary, those of `x_before` and `x_after` side by side and first."""
    rows = dict(summary_rows(summary))
    pairs = []
    for key in list(rows):
        later = key.replace("_before", "_after")
        if "_before" in key and later in rows:
            pairs.append((key.replace("_before", ""), rows.pop(key), rows.pop(later)))
    return pairs, list(rows.items())


def _estimate(value: dict[str, Any]) -> str:
    interval = f" [{value['low']:.3f}, {value['high']:.3f}]" if "low" in value and "high" in value else ""
    episodes = f" of {value['episodes']:,}" if "episodes" in value else ""
    return f"{value['mean']:.3f}{interval}{episodes}"


def _refuse_disk(error: OSError) -> None:
    from deploy.runs import storage_error

    refusal = storage_error(error)
    if refusal is not None:
        refuse(str(refusal), refusal.exit_code)


def _refuse_settings(error: ValueError) -> None:
    """Word a pydantic error that a command did not turn into a ConfigError itself."""
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        from deploy.refusals import worded

        refuse(worded(error), ConfigError.exit_code)

"""What a person sees while a job runs: progress with phase, rate and time left, notes, and tables at the end.

Progress and notes go to stderr, tables to stdout. Without a terminal, progress is one plain line every few seconds.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console as Rich
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.table import Table
from rich.text import Text

PLAIN_SECONDS = 5.0
"""Between the plain lines of a phase."""


class Phase:
    """A stretch of work being counted. `advance` takes numbers to show beside the bar."""

    def __init__(
        self, name: str, total: int | None, start: int, clock: Callable[[], float], line: Callable[[str], None] | None
    ) -> None:
        self.name, self.total, self.done = name, total, start
        self.shown: dict[str, float] = {}
        self._start, self._clock, self._line = start, clock, line
        self._began = self._printed = clock()

    def advance(self, n: int = 1, **shown: float) -> None:
        self.done += n
        self.shown.update(shown)
        if self._line is not None and self._clock() - self._printed >= PLAIN_SECONDS:
            self._line(self.describe())
            self._printed = self._clock()

    @property
    def seconds(self) -> float:
        return self._clock() - self._began

    @property
    def rate(self) -> float | None:
        """Units a second in this process; None before the first, and after work was taken back."""
        worked = self.done - self._start
        return worked / self.seconds if worked > 0 and self.seconds > 0 else None

    def describe(self) -> str:
        """Name, count, rate, time left and the numbers shown, as one plain line."""
        count = f"{self.done}/{self.total}" if self.total is not None else f"{self.done}"
        parts = [f"{self.name}  {count}", rate_text(self.rate)]
        if self.total is not None and self.done < self.total and self.rate:
            parts.append(f"{duration((self.total - self.done) / self.rate)} left")
        return "  ".join(part for part in [*parts, self.numbers()] if part)

    def numbers(self) -> str:
        return "  ".join(f"{name} {number(value)}" for name, value in self.shown.items())


class Console:
    """Prints for a person. `quiet` leaves only tables."""

    def __init__(
        self,
        *,
        quiet: bool = False,
        stderr: TextIO | None = None,
        stdout: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._err = Rich(file=stderr or sys.stderr, highlight=False)
        self._out = Rich(file=stdout or sys.stdout, highlight=False)
        self._quiet = quiet
        self._clock = clock
        self._progress: Progress | None = None

    @contextmanager
    def phase(self, name: str, total: int | None = None, start: int = 0) -> Iterator[Phase]:
        """Count work up to `total` from `start`; phases may nest. Leaves one line when it ends."""
        plain = not self._quiet and not self._err.is_terminal
        phase = Phase(name, total, start, self._clock, self._line if plain else None)
        if self._quiet or plain:
            yield phase
        else:
            with self._live(phase):
                yield phase
        if not self._quiet:
            self._line(f"{phase.describe()}  in {duration(phase.seconds)}")

    def note(self, text: str) -> None:
        if not self._quiet:
            self._line(text)

    def table(self, rows: Sequence[Sequence[object]], *, title: str = "", columns: Sequence[str] = ()) -> None:
        """Rows of cells: the first column left, the others right."""
        width = max((len(row) for row in rows), default=len(columns))
        table = Table(title=Text(title) if title else None, title_justify="left", show_header=bool(columns), box=None)
        for i in range(width):
            table.add_column(Text(columns[i]) if i < len(columns) else "", justify="left" if i == 0 else "right")
        for row in rows:
            table.add_row(*(Text(cell if isinstance(cell, str) else number(cell)) for cell in row))
        live = self._progress
        if live is not None:
            live.stop()
        self._out.print(table)
        if live is not None:
            live.start()

    @contextmanager
    def _live(self, phase: Phase) -> Iterator[None]:
        outermost = self._progress is None
        progress = self._progress = self._progress or self._bars()
        task = progress.add_task(phase.name, total=phase.total, completed=phase.done, phase=phase)
        if outermost:
            progress.start()
        try:
            yield
        finally:
            progress.remove_task(task)
            if outermost:
                progress.stop()
                self._progress = None

    def _bars(self) -> Progress:
        name = TextColumn("{task.description}", markup=False)
        columns = (SpinnerColumn(), name, BarColumn(28), MofNCompleteColumn(), _PhaseColumn())
        return Progress(*columns, console=self._err, transient=True, refresh_per_second=4)

    def _line(self, text: str) -> None:
        self._err.print(Text(text), soft_wrap=True)


class _PhaseColumn(ProgressColumn):
    """Rate, time left and shown numbers of the row's phase; also moves its bar."""

    def render(self, task: Task) -> Text:
        phase: Phase = task.fields["phase"]
        task.completed = phase.done
        left = (phase.total - phase.done) / phase.rate if phase.total is not None and phase.rate else None
        parts = [rate_text(phase.rate), f"{duration(left)} left" if left is not None else "", phase.numbers()]
        return Text("  ".join(part for part in parts if part))


def number(value: object) -> str:
    """A number short enough to read: 0.8125 -> 0.812, 12345.6 -> 12,346."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or (abs(value) >= 1000 and value == value and abs(value) != float("inf")):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def rate_text(rate: float | None) -> str:
    if rate is None:
        return ""
    return f"{number(rate)}/s" if rate >= 1 else f"{number(1 / rate)} s each"


def duration(seconds: float) -> str:
    """1:05, 2:03:04."""
    whole = int(seconds + 0.5)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"

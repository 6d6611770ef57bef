"""Progress for a person: plain lines without a terminal, bars with one, silence when asked."""

import io

import pytest

from deploy.console import Console, duration, number, rate_text


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_plain_lines_every_few_seconds(clock: Clock) -> None:
    err = io.StringIO()
    console = Console(stderr=err, clock=clock)
    with console.phase("warm start", 20, start=10) as phase:
        for _ in range(10):
            clock.now += 2
            phase.advance(loss=0.5)
    lines = err.getvalue().splitlines()
    assert lines[0] == "warm start  13/20  2 s each  0:14 left  loss 0.5"  # the rate counts what this process did
    assert len(lines) == 4  # after 6, 12 and 18 seconds, and at the end
    assert lines[-1] == "warm start  20/20  2 s each  loss 0.5  in 0:20"


def test_a_phase_without_an_end_and_one_that_goes_back(clock: Clock) -> None:
    err = io.StringIO()
    console = Console(stderr=err, clock=clock)
    with console.phase("games") as phase:
        clock.now += 10
        phase.advance(50)
    assert err.getvalue().splitlines() == ["games  50  5/s", "games  50  5/s  in 0:10"]
    with console.phase("policy", 10, start=4) as phase:
        clock.now += 1
        phase.done = 2  # rolled back
        assert phase.rate is None
        assert phase.describe() == "policy  2/10"


def test_an_interrupted_phase_still_propagates(clock: Clock) -> None:
    err = io.StringIO()
    with pytest.raises(KeyboardInterrupt), Console(stderr=err, clock=clock).phase("policy", 3):
        raise KeyboardInterrupt


def test_a_terminal_shows_bars_and_nests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    err, out = Terminal(), Terminal()
    console = Console(stderr=err, stdout=out)
    with console.phase("rl [1]", 2) as outer:
        with console.phase("evaluation", 4) as inner:
            inner.advance(4, success=0.25)
        console.note("[bold]saved[/bold]")
        console.table([("a", 1)])
        outer.advance(2)
    assert "rl [1]" in err.getvalue()
    assert "evaluation  4/4" in err.getvalue()
    assert "[bold]saved[/bold]" in err.getvalue()
    assert "a" in out.getvalue()


def test_quiet_leaves_tables_alone(clock: Clock) -> None:
    err, out = io.StringIO(), io.StringIO()
    console = Console(quiet=True, stderr=err, stdout=out, clock=clock)
    with console.phase("policy", 2) as phase:
        clock.now += 100
        phase.advance(2)
    console.note("said")
    console.table([("[success]", 0.8125), ("seeds", 3)], title="run [x]", columns=("what", "value"))
    assert err.getvalue() == ""
    text = out.getvalue()
    assert all(part in text for part in ("run [x]", "what", "[success]", "0.812", "seeds", "3"))


def test_numbers_rates_and_durations() -> None:
    assert [number(v) for v in (0.8125, 12345.6, 12345, True, "x", float("nan"), float("inf"), 1e-5)] == [
        "0.812", "12,346", "12,345", "True", "x", "nan", "inf", "1e-05",
    ]  # fmt: skip
    assert [duration(s) for s in (0, 59.6, 65, 7384)] == ["0:00", "1:00", "1:05", "2:03:04"]
    assert [rate_text(r) for r in (None, 12.34, 0.25)] == ["", "12.3/s", "4 s each"]

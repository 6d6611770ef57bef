"""Timing on a shared machine: CPU seconds of single-threaded code, arms interleaved in one process, medians.

A ratio is the median of the ratios within each round: what slows the machine for a while slows all arms of a round.
"""

import gc
import time
from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from deploy.console import Console

Seconds = NDArray[np.float64]


@runtime_checkable
class Prepared(Protocol):
    """An arm with work of its own before each measurement, which is not counted."""

    def prepare(self) -> None: ...

    def __call__(self) -> object: ...


def interleave(
    arms: Mapping[str, Callable[[], object] | Prepared],
    rounds: int,
    console: Console,
    *,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, Seconds]:
    """(rounds,) seconds of each arm, in rounds A B C, A B C, ... after one that is not measured."""
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    gc.collect()
    gc.freeze()  # the collections between measurements then look at what the arms leave, not at every module
    try:
        with console.phase(f"measuring {', '.join(arms)}", rounds + 1) as phase:
            for _ in range(rounds + 1):
                for name, arm in arms.items():
                    seconds[name].append(_time(arm, clock))
                phase.advance()
    finally:
        gc.unfreeze()
    return {name: np.array(values[1:]) for name, values in seconds.items()}


def median(values: Seconds) -> float:
    return float(np.median(values))


def ratio(a: Seconds, b: Seconds) -> float:
    """a over b, round by round."""
    return float(np.median(a / b))


def added(a: Seconds, base: Seconds, whole: Seconds | float = 0.0) -> float:
    """What a takes beyond `base`, as a share of `base` and `whole` together, round by round."""
    return float(np.median((a - base) / (base + whole)))


def standard_error(a: Seconds, base: Seconds) -> float:
    """Of `added(a, base)`: 1.2533 s / sqrt(rounds), as for the median of normal values, with s from the quartiles."""
    low, high = np.quantile(a / base, [0.25, 0.75])
    return float(1.2533 * (high - low) / 1.349 / len(a) ** 0.5)


def _time(arm: Callable[[], object] | Prepared, clock: Callable[[], float]) -> float:
    if isinstance(arm, Prepared):
        arm.prepare()
    gc.collect()
    start = clock()
    arm()
    return clock() - start

"""Repetition in a sequence of kernels: the steps of a profile, the layers of a step.

Pure functions on arrays of integer tokens, one a kernel, in the order in which one stream ran them.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int64]

LONGEST_LAYER = 4096
MOST_COMPARISONS = 200_000_000
"""Bound of the search for layers: sequences of more than 50,000 kernels are searched for shorter layers only."""
LEAST_COVERAGE = 0.3
"""Share of a step that repeating layers must cover to count as such."""
LIKENESS = 0.7
"""Share of equal kernels from which on a neighbour of repeating layers is one of them."""
STEP_GAP = 3.0
"""How many times the usual idle time before a repetition marks a new step."""


@dataclass(frozen=True, slots=True)
class Run:
    """``count`` repetitions of ``period`` tokens from ``start`` on; the pattern goes on for ``extra`` more tokens."""

    start: int
    period: int
    count: int
    extra: int

    @property
    def coverage(self) -> int:
        """Tokens in whole repetitions."""
        return self.period * self.count


def longest_run(tokens: Tokens, least_period: int = 1) -> Run | None:
    """Return the run that covers most tokens, with the shortest period; None where nothing repeats."""
    best: Run | None = None
    longest = min(len(tokens) // 2, LONGEST_LAYER, MOST_COMPARISONS // max(len(tokens), 1))
    for period in range(least_period, longest + 1):
        if best and best.coverage >= len(tokens) - best.period:
            break
        start, length = _longest_stretch(tokens[:-period] == tokens[period:])
        if length < period:
            continue
        run = Run(start, period, length // period + 1, length % period)
        if best is None or run.coverage > best.coverage:
            best = run
    return best


def _longest_stretch(equal: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """Return start and length of the longest stretch of True."""
    borders = np.flatnonzero(np.diff(np.concatenate(([0], equal.view(np.int8), [0]))))
    if not len(borders):
        return 0, 0
    starts, lengths = borders[::2], borders[1::2] - borders[::2]
    longest = int(np.argmax(lengths))
    return int(starts[longest]), int(lengths[longest])


def whole_period(tokens: Tokens) -> int:
    """Return the shortest period of the whole sequence: its length, where it does not repeat.

    The last repetition may be incomplete (Knuth, Morris and Pratt's failure function).
    """
    values = tokens.tolist()
    border = [0] * len(values)
    length = 0
    for place in range(1, len(values)):
        while length and values[place] != values[length]:
            length = border[length - 1]
        length += values[place] == values[length]
        border[place] = length
    return len(values) - (border[-1] if values else 0)


def split_steps(
    tokens: Tokens, idle_us: npt.NDArray[np.float64], is_step_marker: npt.NDArray[np.bool_]
) -> list[tuple[int, int]]:
    """Return the steps as half-open ranges; one range over everything where no repetition of steps is seen.

    Args:
        tokens: of all steps.
        idle_us: how long the device was idle before each kernel.
        is_step_marker: kernels that run once a step: embedding, sampling.
    """
    whole = [(0, len(tokens))]
    period = whole_period(tokens)
    if period <= len(tokens) // 2:
        return _periodic_steps(tokens, period, idle_us, is_step_marker)
    anchors = _anchors(tokens, idle_us)
    if anchors is None:
        return whole
    steps = list(pairwise([*anchors, len(tokens)]))
    usual = float(np.median([end - start for start, end in steps[:-1]]))
    # What precedes the first anchor is the rest of a step; so may be what follows the last.
    return steps if steps[-1][1] - steps[-1][0] >= 0.9 * usual else steps[:-1]


def _periodic_steps(
    tokens: Tokens, period: int, idle_us: npt.NDArray[np.float64], is_step_marker: npt.NDArray[np.bool_]
) -> list[tuple[int, int]]:
    count, rest = divmod(len(tokens), period)
    offset = 0
    if rest:  # cut in the middle of a step: it begins after the longest pause
        table = idle_us[: count * period].reshape(count, period)[1:] if count > 1 else idle_us[None, :period]
        offset = int(np.argmax(np.median(table, axis=0)))
        count = (len(tokens) - offset) // period
    starts = offset + period * np.arange(count)
    inner = longest_run(tokens[starts[0] : starts[0] + period], least_period=2)
    holds_layers = inner is not None and inner.coverage >= LEAST_COVERAGE * period
    if not holds_layers and not is_step_marker[starts[0] : starts[0] + period].any():
        # Layers and nothing else: only longer pauses can tell where a step begins.
        pauses = idle_us[starts]
        inside = np.delete(idle_us[offset : offset + count * period], starts - offset)
        if (
            count > 2
            and (longer := np.flatnonzero(pauses[1:] > STEP_GAP * max(float(np.median(pauses[1:])), 0.1))).size
        ):
            starts = starts[np.concatenate(([0], longer + 1))]
        elif not len(inside) or np.median(pauses[1:]) <= STEP_GAP * max(float(np.median(inside)), 0.1):
            starts = starts[:1]
    return list(pairwise([*starts.tolist(), offset + count * period]))


def _anchors(tokens: Tokens, idle_us: npt.NDArray[np.float64]) -> list[int] | None:
    """Return where the rarest kernel that recurs evenly stands: it runs once a step."""
    kinds, counts = np.unique(tokens, return_counts=True)
    best: tuple[float, list[int]] | None = None
    for count in sorted({int(count) for count in counts if count >= 2}):
        for kind in kinds[counts == count]:
            places = np.flatnonzero(tokens == kind)
            distances = np.diff(places)
            usual = float(np.median(distances))
            if count * usual < 0.6 * len(tokens) or np.abs(distances - usual).max() > 0.2 * usual:
                continue
            pause = float(np.median(idle_us[places[1:]]))
            if best is None or pause > best[0]:
                best = (pause, places.tolist())
        if best:
            return best[1]
    return None


@dataclass(frozen=True, slots=True)
class Landmarks:
    """What is known about single kernels of a step: True where it holds; all False where nothing is known.

    Attributes:
        attention: computes attention.
        rest: belongs to MLP or experts.
        norm: begins a norm, or what may hold one.
    """

    attention: npt.NDArray[np.bool_]
    rest: npt.NDArray[np.bool_]
    norm: npt.NDArray[np.bool_]

    def part(self, begin: int, end: int) -> "Landmarks":
        """Return those of some of the kernels."""
        return Landmarks(self.attention[begin:end], self.rest[begin:end], self.norm[begin:end])


def split_layers(tokens: Tokens, marks: Landmarks) -> list[tuple[int, int]]:
    """Return the layers of a step as half-open ranges, in order: what repeats, else what the landmarks show."""
    run = longest_run(tokens)
    if run is None or run.coverage < LEAST_COVERAGE * len(tokens):
        return _by_landmarks(marks)
    found: list[list[tuple[int, int]]] = [_around(tokens, marks, run, offset) for offset in _first_kernels(marks, run)]
    return max(found, key=lambda layers: sum(end - start for start, end in layers))


def _first_kernels(marks: Landmarks, run: Run) -> Sequence[int]:
    """Return where, counted from the run's start, a layer may begin: every turn of a period fits as well."""
    period = np.arange(run.start, run.start + run.period)
    rest, norms = np.flatnonzero(marks.rest[period]), np.flatnonzero(marks.norm[period])
    if len(rest) and len(norms) and marks.attention[period].any():
        # The first norm between the MLP of one layer and the attention of the next.
        attention = int(np.flatnonzero(marks.attention[period])[0])
        before = [place for place in rest if place < attention]
        last = before[-1] if before else rest[-1] - run.period
        following = sorted((place - last) % run.period for place in norms)
        return [int((last + following[0]) % run.period)]
    return range(run.extra + 1)


def _around(tokens: Tokens, marks: Landmarks, run: Run, offset: int) -> list[tuple[int, int]]:
    """Return the run's layers when they begin at ``offset``, and those of other kinds before and behind them."""
    start = run.start + offset
    count = run.count - (offset > run.extra)
    pattern = tokens[start : start + run.period]
    while start >= run.period and np.mean(tokens[start - run.period : start] == pattern) >= LIKENESS:
        start, count = start - run.period, count + 1
    end = start + count * run.period
    while end + run.period <= len(tokens) and np.mean(tokens[end : end + run.period] == pattern) >= LIKENESS:
        end, count = end + run.period, count + 1
    layers = [(begin, begin + run.period) for begin in range(start, end, run.period)]
    heads = np.flatnonzero(marks.attention[start : start + run.period])
    head = pattern[: int(heads[0]) + 1 if len(heads) else max(1, run.period // 2)]
    inside = _by_landmarks(marks.part(start, start + run.period))
    if len(inside) > 1:  # kinds that alternate repeat together only
        cuts = [0, *(low for low, _ in inside[1:]), run.period]
        layers = [(begin + low, begin + high) for begin, _ in layers for low, high in pairwise(cuts)]
    behind = _beside(tokens[end:], marks.part(end, len(tokens)), None)
    return (
        _beside(tokens[:start], marks.part(0, start), head) + layers + [(low + end, high + end) for low, high in behind]
    )


def _beside(tokens: Tokens, marks: Landmarks, head: Tokens | None) -> list[tuple[int, int]]:
    """Return layers of other kinds: by their landmarks, or where ``head`` begins them, or by repetition."""
    if layers := _by_landmarks(marks):
        return layers
    if head is not None and len(head) > 1 and (begins := _occurrences(tokens, head)):
        return list(pairwise([*begins, len(tokens)]))
    run = longest_run(tokens, least_period=4)
    if run is None or run.coverage < 2 * LEAST_COVERAGE * len(tokens):
        return []
    return [(start, start + run.period) for start in range(run.start, run.start + run.coverage, run.period)]


def _by_landmarks(marks: Landmarks) -> list[tuple[int, int]]:
    """Return a layer for each attention that an MLP follows, from the norm before it to the norm behind that."""
    begins, norm, in_attention = [], None, False
    for place in np.flatnonzero(marks.attention | marks.rest | marks.norm).tolist():
        if marks.rest[place]:
            in_attention, norm = False, None
        elif marks.attention[place] and not in_attention:
            begins.append(place if norm is None else norm)
            in_attention = True
        elif marks.norm[place] and norm is None:
            norm = place
    if not begins or not marks.rest[begins[0] :].any():
        return []
    end = norm if norm is not None and not in_attention else len(marks.norm)
    return list(pairwise([*begins, end]))


def _occurrences(tokens: Tokens, wanted: Tokens) -> list[int]:
    if len(tokens) < len(wanted):
        return []
    windows = np.lib.stride_tricks.sliding_window_view(tokens, len(wanted))
    places: list[int] = []
    for place in np.flatnonzero((windows == wanted).all(axis=1)).tolist():
        if not places or place >= places[-1] + len(wanted):
            places.append(place)
    return places


def name_kinds(layers: Sequence[Tokens], word: Callable[[int], str]) -> list[str]:
    """Return the kind of each layer: ``word`` of its index, numbered where different kinds share one.

    Layers are of one kind when they share word and ``LIKENESS`` of their kernels.
    """
    kinds: dict[str, tuple[str, Counter[int]]] = {}
    names = []
    for index, layer in enumerate(layers):
        base, counts = word(index), Counter(layer.tolist())
        alike = (
            name
            for name, (known_base, known) in kinds.items()
            if base == known_base and (counts & known).total() >= LIKENESS * max(counts.total(), known.total())
        )
        same = sum(known_base == base for known_base, _ in kinds.values())
        names.append(next(alike, f"{base}_{same + 1}" if same else base))
        kinds.setdefault(names[-1], (base, counts))
    return names

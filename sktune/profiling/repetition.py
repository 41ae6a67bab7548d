"""Repetition in a sequence of kernels: the steps of a profile, the layers of a step.

Pure functions on arrays of integer tokens, one per kernel, in the order in which one stream ran them.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int64]

MAX_LAYER = 4096
MAX_COMPARISONS = 200_000_000
"""Limits the search for layers: in sequences of more than 50,000 kernels, only shorter layers are searched for."""
MIN_COVERAGE = 0.3
"""Share of a step that repeating layers must cover to count as such."""
MIN_SIMILARITY = 0.7
"""Share of equal kernels above which a neighbour of repeating layers is one of them."""
STEP_GAP = 3.0
"""Idle time before a repetition, relative to the usual one, above which it is a new step."""


@dataclass(frozen=True, slots=True)
class Repetition:
    """``count`` repetitions of ``period`` tokens from ``start``; the pattern continues for ``extra`` more tokens."""

    start: int
    period: int
    count: int
    extra: int

    @property
    def coverage(self) -> int:
        """Tokens in whole repetitions."""
        return self.period * self.count


def longest_run(tokens: Tokens, min_period: int = 1) -> Repetition | None:
    """Return the run that covers the most tokens, with the shortest period; None if nothing repeats."""
    best: Repetition | None = None
    longest = min(len(tokens) // 2, MAX_LAYER, MAX_COMPARISONS // max(len(tokens), 1))
    for period in range(min_period, longest + 1):
        if best and best.coverage >= len(tokens) - best.period:
            break
        # Where stretches of kernels begin and end that are equal to those one period later.
        borders = np.flatnonzero(np.diff(tokens[:-period] == tokens[period:], prepend=False, append=False))
        lengths = borders[1::2] - borders[::2]
        if not len(lengths) or (length := int(lengths.max())) < period:
            continue
        start = int(borders[2 * np.argmax(lengths)])
        run = Repetition(start, period, length // period + 1, length % period)
        if best is None or run.coverage > best.coverage:
            best = run
    return best


def whole_period(tokens: Tokens) -> int:
    """Return the shortest period of the whole sequence: its length if it does not repeat.

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
    """Return the steps as half-open ranges; a single one if no repeating steps are found, or if they are layers.

    Args:
        tokens: of all steps.
        idle_us: how long the device was idle before each kernel.
        is_step_marker: True for kernels that run once per step: embedding, sampling.
    """
    whole = [(0, len(tokens))]
    period = whole_period(tokens)
    if period <= len(tokens) // 2:
        return _periodic_steps(tokens, period, idle_us, is_step_marker)
    anchors = _anchors(tokens, idle_us)
    if anchors is None:
        return whole
    if _are_layers(tokens, anchors, is_step_marker):
        # One step around all kernels, without those before a wait longer than all idle time after it.
        place = int(np.argmax(idle_us[: anchors[0] + 1]))
        is_outside = idle_us[place] > STEP_GAP * float(idle_us[place + 1 :].sum())
        return [(place if is_outside else 0, len(tokens))]
    anchors = _after_pauses(anchors, idle_us, is_step_marker)
    steps = list(pairwise([*anchors, len(tokens)]))
    usual = float(np.median([end - start for start, end in steps[:-1]]))
    # Before the first anchor is the rest of a step, and after the last one there may be an incomplete step.
    return steps if steps[-1][1] - steps[-1][0] >= 0.9 * usual else steps[:-1]


def _periodic_steps(
    tokens: Tokens, period: int, idle_us: npt.NDArray[np.float64], is_step_marker: npt.NDArray[np.bool_]
) -> list[tuple[int, int]]:
    count, rest = divmod(len(tokens), period)
    offset = 0
    if rest:  # the recording starts in the middle of a step; steps begin after the longest pause
        table = idle_us[: count * period].reshape(count, period)[1:] if count > 1 else idle_us[None, :period]
        offset = int(np.argmax(np.median(table, axis=0)))
        count = (len(tokens) - offset) // period
    starts = np.array(_after_pauses((offset + period * np.arange(count)).tolist(), idle_us, is_step_marker))
    if starts[0] != offset:  # the recording begins and ends in the middle of a step
        offset, count = int(starts[0]), (len(tokens) - int(starts[0])) // period
        starts = offset + period * np.arange(count)
    inner = longest_run(tokens[starts[0] : starts[0] + period], min_period=2)
    has_layers = inner is not None and inner.coverage >= MIN_COVERAGE * period
    if not has_layers and not is_step_marker[starts[0] : starts[0] + period].any():
        # Only layers: longer pauses are the only sign of where a step begins.
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


def _after_pauses(
    starts: list[int], idle_us: npt.NDArray[np.float64], is_step_marker: npt.NDArray[np.bool_]
) -> list[int]:
    """Return the starts of steps, moved to the longest pause in each if that is clearly longer than the one before it.

    Where a step begins with a kernel that runs once per step, the pause is inside it.
    """
    if len(starts) < 3 or is_step_marker[starts[1]] > is_step_marker[starts[1] + 1]:
        return starts
    longest = [begin + 1 + int(np.argmax(idle_us[begin + 1 : end + 1])) for begin, end in pairwise(starts)]
    is_clear = np.median(idle_us[longest]) > STEP_GAP * max(float(np.median(idle_us[starts[1:]])), 0.1)
    return longest if is_clear else starts


def _are_layers(tokens: Tokens, anchors: Sequence[int], is_step_marker: npt.NDArray[np.bool_]) -> bool:
    """Whether what repeats from anchor to anchor is inside one step, whose own kernels are before and after it.

    The rest of a step before the first anchor and an incomplete step after the last one have only kernels that repeat.
    """
    inside = slice(anchors[0], anchors[-1])
    marked = sum(bool(is_step_marker[begin:end].any()) for begin, end in pairwise(anchors))
    if 2 * marked >= len(anchors) - 1:
        return False
    is_new_before, is_new_after = (
        not np.isin(part, tokens[inside]).all() for part in (tokens[: anchors[0]], tokens[anchors[-1] :])
    )
    if is_new_before and is_new_after:
        return True
    inner = longest_run(tokens[anchors[0] : anchors[1]], min_period=2)
    has_layers = inner is not None and inner.coverage >= MIN_COVERAGE * (anchors[1] - anchors[0])
    return (is_new_before or is_new_after) and not has_layers


def _anchors(tokens: Tokens, idle_us: npt.NDArray[np.float64]) -> list[int] | None:
    """Return the positions of the rarest kernel that recurs evenly: it runs once per step."""
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
    """What is known about each kernel of a step; all False if nothing is known.

    Attributes:
        attention: computes attention.
        rest: belongs to MLP or experts.
        norm: begins a norm, or a SuperKernel that may contain one.
    """

    attention: npt.NDArray[np.bool_]
    rest: npt.NDArray[np.bool_]
    norm: npt.NDArray[np.bool_]

    def part(self, begin: int, end: int) -> "Landmarks":
        """Return the landmarks of the kernels from ``begin`` to ``end``."""
        return Landmarks(self.attention[begin:end], self.rest[begin:end], self.norm[begin:end])


def split_layers(tokens: Tokens, marks: Landmarks) -> list[tuple[int, int]]:
    """Return the layers of a step as half-open ranges, in order: by repetition, else by landmarks."""
    run = longest_run(tokens)
    if run is None or run.coverage < MIN_COVERAGE * len(tokens):
        return _by_landmarks(marks)
    splits: list[list[tuple[int, int]]] = [_around(tokens, marks, run, offset) for offset in _first_kernels(marks, run)]
    return max(splits, key=lambda layers: sum(end - start for start, end in layers))


def _first_kernels(marks: Landmarks, run: Repetition) -> Sequence[int]:
    """Return the offsets from the run's start at which a layer may begin: by repetition alone, all fit equally well."""
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


def _around(tokens: Tokens, marks: Landmarks, run: Repetition, offset: int) -> list[tuple[int, int]]:
    """Return the run's layers if they begin at ``offset``, and those of other kinds before and after them."""
    start = run.start + offset
    count = run.count - (offset > run.extra)
    pattern = tokens[start : start + run.period]
    while start >= run.period and np.mean(tokens[start - run.period : start] == pattern) >= MIN_SIMILARITY:
        start, count = start - run.period, count + 1
    end = start + count * run.period
    while end + run.period <= len(tokens) and np.mean(tokens[end : end + run.period] == pattern) >= MIN_SIMILARITY:
        end, count = end + run.period, count + 1
    layers = [(begin, begin + run.period) for begin in range(start, end, run.period)]
    heads = np.flatnonzero(marks.attention[start : start + run.period])
    head = pattern[: int(heads[0]) + 1 if len(heads) else max(1, run.period // 2)]
    inside = _by_landmarks(marks.part(start, start + run.period))
    if len(inside) > 1:  # alternating kinds only repeat together
        cuts = [0, *(low for low, _ in inside[1:]), run.period]
        layers = [(begin + low, begin + high) for begin, _ in layers for low, high in pairwise(cuts)]
    before = _beside(tokens[:start], marks.part(0, start), head)
    after = _beside(tokens[end:], marks.part(end, len(tokens)), None)
    return before + layers + [(low + end, high + end) for low, high in after]


def _beside(tokens: Tokens, marks: Landmarks, head: Tokens | None) -> list[tuple[int, int]]:
    """Return layers of other kinds: by their landmarks, else by their beginning ``head``, else by repetition."""
    if layers := _by_landmarks(marks):
        return layers
    if head is not None and 1 < len(head) <= len(tokens):
        windows = np.lib.stride_tricks.sliding_window_view(tokens, len(head))
        begins: list[int] = []
        for place in np.flatnonzero((windows == head).all(axis=1)).tolist():
            if not begins or place >= begins[-1] + len(head):
                begins.append(place)
        if begins:
            return list(pairwise([*begins, len(tokens)]))
    run = longest_run(tokens, min_period=4)
    if run is None or run.coverage < 2 * MIN_COVERAGE * len(tokens):
        return []
    if whole_period(tokens[run.start : run.start + run.period]) < run.period:  # copies in a row, say
        return []
    return [(start, start + run.period) for start in range(run.start, run.start + run.coverage, run.period)]


def _by_landmarks(marks: Landmarks) -> list[tuple[int, int]]:
    """Return a layer for each attention followed by an MLP, from the norm before it to the next layer's norm."""
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


def name_kinds(layers: Sequence[Tokens], word: Callable[[int], str]) -> list[str]:
    """Return the kind of each layer: ``word`` of its index, numbered if different kinds share a word.

    Layers are of one kind if they share the word and ``MIN_SIMILARITY`` of their kernels.
    """
    kinds: dict[str, tuple[str, Counter[int]]] = {}
    names = []
    for index, layer in enumerate(layers):
        base, counts = word(index), Counter(layer.tolist())
        alike = (
            name
            for name, (known_base, known) in kinds.items()
            if base == known_base and (counts & known).total() >= MIN_SIMILARITY * max(counts.total(), known.total())
        )
        same = sum(known_base == base for known_base, _ in kinds.values())
        names.append(next(alike, f"{base}_{same + 1}" if same else base))
        kinds.setdefault(names[-1], (base, counts))
    return names

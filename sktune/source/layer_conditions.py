"""The condition that a layer's number is one of some layers, as short as it can be said."""

from collections.abc import Iterator, Sequence

MAX_LISTED = 6
"""Numbers that are listed rather than described by their pattern."""


def of_layers(layers: Sequence[int], n_layers: int, index: str) -> str:
    """Return the condition that ``index`` is one of ``layers``, which ascend; empty if there are no others."""
    if not layers or len(layers) == n_layers:
        return ""
    if len(layers) == layers[-1] - layers[0] + 1:
        return _between(layers[0], layers[-1], n_layers, index)
    listed = f"{index} in ({', '.join(map(str, layers))})"
    if len(layers) <= MAX_LISTED:
        return listed
    return min(*_patterns(layers, n_layers, index), listed, key=len)


def _between(first: int, last: int, n_layers: int, index: str) -> str:
    """Return the condition of consecutive layers; empty for all layers."""
    if first == last:
        return f"{index} == {first}"
    if first > 0 and last < n_layers - 1:
        return f"{first} <= {index} <= {last}"
    return f"{index} >= {first}" if first > 0 else f"{index} <= {last}" if last < n_layers - 1 else ""


def _patterns(layers: Sequence[int], n_layers: int, index: str) -> Iterator[str]:
    """Yield conditions that say the same as a list of layers: what is missing, ranges, and what repeats."""
    first, last, wanted = layers[0], layers[-1], set(layers)
    missing = [layer for layer in range(first, last + 1) if layer not in wanted]
    without = f"{index} != {missing[0]}" if len(missing) == 1 else f"{index} not in ({', '.join(map(str, missing))})"
    yield " and ".join(filter(None, (_between(first, last, n_layers, index), without)))
    begins = [layer for layer in layers if layer - 1 not in wanted]
    ends = [layer for layer in layers if layer + 1 not in wanted]
    ranges = [_between(begin, end, n_layers, index) for begin, end in zip(begins, ends, strict=True)]
    yield f"({' or '.join(ranges)})"
    for period in range(2, (last - first + 1) // 3 + 1):  # what comes only twice does not repeat
        rests = sorted({layer % period for layer in layers})
        whole = [rest for rest in rests if wanted.issuperset(range(rest, n_layers, period))]
        if len(rests) < period and all((layer % period in rests) == (layer in wanted) for layer in range(first, last)):
            # A bound is needed where the pattern would go on.
            lowest = first if any(layer % period in rests for layer in range(first)) else 0
            highest = last if any(layer % period in rests for layer in range(last + 1, n_layers)) else n_layers - 1
            yield " and ".join(filter(None, (_between(lowest, highest, n_layers, index), _of(rests, period, index))))
        others = [layer for layer in layers if layer % period not in whole]
        for begin, end in zip(begins, ends, strict=True):
            if whole and others and begin <= others[0] and others[-1] <= end:
                yield f"({_between(begin, end, n_layers, index)} or {_of(whole, period, index)})"


def _of(rests: Sequence[int], period: int, index: str) -> str:
    """Return the condition that ``index`` leaves one of some ``rests``, which ascend, when divided by ``period``."""
    if len(rests) == 1:
        return f"{index} % {period} == {rests[0]}"
    if len(rests) == period - 1:
        return f"{index} % {period} != {min(set(range(period)) - set(rests))}"
    return f"{index} % {period} in ({', '.join(map(str, rests))})"

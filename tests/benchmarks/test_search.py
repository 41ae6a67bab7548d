"""The benchmark of samplers, and recorded landscapes."""

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import search
from benchmarks.landscape import measured
from benchmarks.landscapes.recorded import (
    ENDING,
    FOLDER,
    FORMAT_VERSION,
    RecordedLandscape,
    names,
    plan_of,
    recorded,
    request_of,
    to_entry,
)
from benchmarks.landscapes.synthetic import SyntheticLandscape, Traits
from benchmarks.record_landscape import WorkingFile, plans_of, to_repeat, write
from sktune.core.errors import BadInputError
from sktune.core.outcome import Outcome, Reason
from sktune.core.plan import Plan, Scope
from sktune.worker.jobs import Opened
from tests.benchmarks.test_landscapes import tiny

OWN = """
from benchmarks.landscapes.synthetic import SyntheticLandscape, Traits

KINDS = {"moe": ("self_attn", "gate", "experts")}

def mine(seed):
    return SyntheticLandscape("mine", Traits(failing_share=0.2), seed, KINDS, ("moe", "moe"), {"fusion": (0, 1)})
"""

Benchmark = Callable[..., list[str]]


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Benchmark:
    """Return a function that runs the command and returns the lines that it prints."""

    def run(*options: str) -> list[str]:
        monkeypatch.setattr("sys.argv", ["search.py", *options])
        search.main()
        return capsys.readouterr().out.splitlines()

    return run


@pytest.fixture
def own(tmp_path: Path) -> str:
    """Return a user's own landscape, as an argument of the command."""
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return f"{path}:mine"


def test_json_has_a_line_for_each_landscape_and_sampler(benchmark: Benchmark, own: str, tmp_path: Path) -> None:
    """One JSON object per line, and a page with the machine's description."""
    page = tmp_path / "table.md"
    lines = benchmark(
        "--landscape", own, "--samplers", "tpe,random", "--seeds", "3", "--trials", "12", "--jobs", "2",
        "--at", "10,12,40", "--json", "--output", str(page),
    )  # fmt: skip
    found = [json.loads(line) for line in lines]
    assert [(each["landscape"], each["sampler"], each["seeds"]) for each in found] == [
        (own, "tpe", 3),
        (own, "random", 3),
    ]
    for each in found:
        assert set(each) == {"landscape", "sampler", "seeds", "gain", "trials_to_95", "failed_share", "ask_ms"}
        assert list(each["gain"]) == ["10", "12"]
        assert each["gain"]["10"]["p05"] <= each["gain"]["10"]["median"] <= 1
        assert each["trials_to_95"] is None or 1 <= each["trials_to_95"] <= 12
    assert "cores" in page.read_text()
    assert page.read_text().count(own) == 3  # in the command and in two rows
    assert str(page) not in page.read_text()


@pytest.mark.slow
def test_figures_alone_can_choose_the_incumbents(benchmark: Benchmark, tmp_path: Path) -> None:
    """Proposals are the same; the plan with the lowest latency is the incumbent, and the page says so."""
    found, pages = [], []
    for number, more in enumerate(([], ["--by-figure"])):
        page = tmp_path / f"{number}.md"
        options = ("--landscape", "synthetic", "--seeds", "3", "--trials", "20", "--json", f"--output={page}", *more)
        found.append([json.loads(line) for line in benchmark(*options, "--samplers", "partition,tpe")])
        pages.append(page.read_text())
    assert found[0][0]["gain"] != found[1][0]["gain"]
    assert found[0][1]["gain"] == found[1][1]["gain"]
    assert "expects to save the most (partition)" in pages[0]
    assert "The incumbent is the trial of the lowest figure." in pages[1]


def test_searches_do_not_depend_on_how_many_run_at_once(benchmark: Benchmark, own: str) -> None:
    """A seed's searches are the same in any process; only times differ."""
    options = ("--landscape", own, "--samplers", "tpe", "--seeds", "4", "--trials", "12", "--json")

    def figures(*more: str) -> dict[str, Any]:
        line: dict[str, Any] = json.loads(benchmark(*options, *more)[0])
        return {**line, "ask_ms": None}

    assert figures() == figures("--jobs", "2")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--landscape", "synthetik"), "did you mean 'synthetic'"),
        (("--landscape", "nowhere.py:mine"), "give file.py:function"),
        (("--samplers", "tpf"), "did you mean 'tpe'"),
    ],
)
def test_bad_input_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], message: str
) -> None:
    """The message names the mistake and the closest name, and the exit code is 2."""
    monkeypatch.setattr("sys.argv", ["search.py", "--samplers", "random", *options, "--seeds", "1"])
    with pytest.raises(SystemExit) as stopped:
        search.main()
    error = capsys.readouterr().err
    assert stopped.value.code == 2
    assert message in error
    assert len(error.splitlines()) == 1


def test_kernel_tuner_searches_the_same_landscape() -> None:
    """Its strategies begin with the same starting points and evaluate the same number of distinct points."""
    pytest.importorskip("kernel_tuner", reason="the extra bench is not installed")
    landscape = tiny(Traits(failing_share=0.2), 0)
    points = [landscape.space.plan(point.values) for point in landscape.space.starting_points]
    for strategy in ("bayes_opt", "genetic_algorithm", "greedy_ils", "dual_annealing"):
        run = search.contender(f"kt-{strategy}")(landscape, 30, 0, True, 1, False)
        assert len(run.gains) == 30
        assert list(run.plans[: len(points)]) == points
        assert max(run.gains) <= 1


def entries_of(landscape: SyntheticLandscape) -> list[dict[str, Any]]:
    """Return the entries of a recording of every plan of a landscape, without noise."""
    landscape.noise = 0.0
    position = {unit.name: index for index, unit in enumerate(landscape.space.layout.units)}
    plans = plans_of(landscape.space)
    return [to_entry(plan, measured_exactly(landscape, plan), position) for plan in plans]


def measured_exactly(landscape: SyntheticLandscape, plan: Plan) -> Outcome:
    """Return the outcome of a plan with its true scope times."""
    truth = landscape.evaluate(plan)
    outcome = measured(landscape, plan, truth, 0)
    return replace(outcome, scope_times=truth.scope_times)


def record_of(landscape: SyntheticLandscape, entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the record with these entries."""
    return {"version": FORMAT_VERSION, "baseline_ms": landscape.baseline_ms, "plans": entries}


def test_a_recorded_landscape_returns_what_was_recorded() -> None:
    """Latency, failure, blame and scope times of every plan; the best is the fastest plan that does not fail."""
    landscape = tiny(Traits(failing_share=0.2), 1)
    replayed = RecordedLandscape("recorded", landscape.space, record_of(landscape, entries_of(landscape)))
    for plan in plans_of(landscape.space):
        ours, theirs = replayed.evaluate(plan), landscape.evaluate(plan)
        assert (ours.reason, ours.blamed, ours.changes_bits) == (theirs.reason, theirs.blamed, theirs.changes_bits)
        assert len(ours.scope_times) == len(theirs.scope_times)
        if theirs.latency_ms is not None:
            assert ours.latency_ms == pytest.approx(theirs.latency_ms, rel=1e-4)
    assert replayed.best_ms == pytest.approx(landscape.best_ms, rel=1e-4)


def test_a_probe_is_assembled_from_recorded_scopes() -> None:
    """Plans whose layers of one kind differ were not recorded, but the times of their scopes were."""
    landscape = tiny(Traits(), 1)
    replayed = RecordedLandscape("recorded", landscape.space, record_of(landscape, entries_of(landscape)))
    probe = Plan(
        (
            Scope("model.layers.1.self_attn", "model.layers.1.post_norm"),
            Scope("model.layers.2.gate", "model.layers.2.experts"),
        )
    )
    assert probe not in plans_of(landscape.space)
    assert replayed.evaluate(probe).latency_ms == pytest.approx(landscape.evaluate(probe).latency_ms, rel=1e-3)


def test_a_probe_with_a_scope_that_changes_bits_fails() -> None:
    """The scope was timed in the plans that failed because of it, but it does not work."""
    landscape = tiny(Traits(failing_share=0.4), 1)
    replayed = RecordedLandscape("recorded", landscape.space, record_of(landscape, entries_of(landscape)))
    plans = plans_of(landscape.space)
    unsound = {scope for plan in plans for scope in plan.scopes if scope.label in replayed.evaluate(plan).changes_bits}
    probes = [probe for scope in unsound if (probe := Plan((scope,))) not in plans]
    assert probes
    for probe in probes:
        assert replayed.evaluate(probe).reason is Reason.MISMATCH


def test_a_record_that_lacks_plans_is_refused() -> None:
    """An optimum over only some of the plans is not the optimum."""
    landscape = tiny(Traits(), 0)
    entries = entries_of(landscape)
    with pytest.raises(BadInputError, match=f"{len(entries) - 5} of {len(entries)} plans"):
        RecordedLandscape("recorded", landscape.space, record_of(landscape, entries[5:]))


@pytest.mark.parametrize("name", names())
def test_committed_recordings_are_complete_and_small(name: str) -> None:
    """With every plan of the stated space, in a file small enough for a clone."""
    landscape = recorded(name)
    assert (40 if request_of(name).batch else 1_000) <= landscape.space.size <= 20_000
    assert (FOLDER / f"{name}{ENDING}").stat().st_size < 3e6
    assert len(landscape.space.starting_points) >= 3
    assert landscape.best_ms < landscape.baseline_ms


def test_a_recording_continues_after_a_kill(tmp_path: Path) -> None:
    """A truncated line is dropped; a file of another machine or version is rejected."""
    path = tmp_path / "plans.jsonl"
    file = WorkingFile(path, {"torch": "2.13"})
    file.append({"scopes": [[0, 1]]})
    with path.open("a") as torn:
        torn.write('{"scopes": [[0,')
    again = WorkingFile(path, {"torch": "2.13"})
    again.append({"scopes": [[2, 2]]})
    assert WorkingFile(path, {"torch": "2.13"}).entries == [{"scopes": [[0, 1]]}, {"scopes": [[2, 2]]}]
    with pytest.raises(BadInputError, match="was made with torch"):
        WorkingFile(path, {"torch": "2.14"})


def test_a_wide_interval_does_not_settle_a_plan(tmp_path: Path) -> None:
    """A plan measured on a busy machine is measured again, and the measurement of an idle machine counts."""
    landscape = tiny(Traits(), 0)
    entries = entries_of(landscape)
    wide = min((entry for entry in entries if entry["ratio"]), key=lambda entry: entry["ratio"])
    true_ratio, wide["ratio"], wide["ci95"] = wide["ratio"], 0.5, [0.3, 0.7]
    assert to_repeat(entries).count(wide) == 3
    again = {**wide, "ratio": true_ratio, "ci95": [true_ratio, true_ratio]}
    assert wide not in to_repeat([*entries, again])
    file = tmp_path / "record.json.gz"
    write(file, Opened(landscape.space.layout, "made for a test", {}), {}, [*entries, again])
    plans = json.loads(gzip.decompress(file.read_bytes()))["plans"]
    assert [entry["ratio"] for entry in plans if entry["scopes"] == wide["scopes"]
            and entry["options"] == wide["options"]] == [true_ratio]  # fmt: skip


def test_a_lucky_judgement_does_not_make_the_best_plan(tmp_path: Path) -> None:
    """The fastest are judged three more times, and the median of those counts; likewise for accidental failures."""
    landscape = tiny(Traits(), 0)
    entries = entries_of(landscape)
    lucky = max((entry for entry in entries if entry["reason"] is None), key=lambda entry: entry["ratio"])
    timed_out = next(entry for entry in entries if entry is not lucky)
    true_ratio, lucky["ratio"] = lucky["ratio"], 3 * lucky["ratio"]
    well = dict(timed_out)
    timed_out |= {"reason": "timeout", "ratio": None, "ci95": None, "baseline_ms": None}
    repeated = to_repeat(entries)
    assert repeated.count(lucky) == repeated.count(timed_out) == 3
    again = [{**lucky, "ratio": ratio} for ratio in (true_ratio, 0.9 * true_ratio, 1.1 * true_ratio)] + [well]
    file = tmp_path / "record.json.gz"
    write(file, Opened(landscape.space.layout, "made for a test", {}), {}, [*entries, *again])
    record = json.loads(gzip.decompress(file.read_bytes()))
    units = [unit.name for unit in landscape.space.layout.units]
    stands = {plan_of(entry, units): entry for entry in record["plans"]}
    assert len(stands) == len(entries)
    assert stands[plan_of(lucky, units)]["ratio"] == true_ratio
    assert stands[plan_of(timed_out, units)]["reason"] == well["reason"]

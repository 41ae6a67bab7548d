"""What everything relies on in a ``BackendInfo``, and in the backend that it names."""

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import sktune.backends
from sktune.backends import all_backends, backend_info, backend_on
from sktune.backends.info import BackendInfo, attribute_at
from sktune.backends.options import step_options, with_bit_changing
from sktune.core.errors import BadInputError, PlanError, SktuneError, SpaceError
from sktune.core.outcome import Outcome, Reason, Stage
from sktune.core.plan import Plan, Scope
from sktune.core.scope_flavour import ScopeFlavour
from sktune.targets import PresetSpec, TargetSpec
from sktune.tuning.request import Request

PLAN = Plan((Scope("a", "b"),))

each_backend = pytest.mark.parametrize("info", all_backends(), ids=lambda info: info.name)
each_device = pytest.mark.parametrize(
    ("info", "device"),
    [pytest.param(info, device, id=f"{info.name}-{device}") for info in all_backends() for device in info.devices],
)


def is_one_line(failure: SktuneError) -> bool:
    """Whether a message is what users are meant to see."""
    return len(str(failure).splitlines()) == 1


def test_they_are_known_without_torch() -> None:
    """Help, errors and finished studies come quickly."""
    code = "import sys, sktune.backends as b; b.all_backends(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@each_backend
def test_what_it_names_exists(info: BackendInfo) -> None:
    """Its class, and the functions that other processes load."""
    methods = ("compile", "written", "references", "with_operators", *(("time_shares",) if info.is_simulated else ()))
    assert all(callable(getattr(info.load(), method)) for method in methods)
    assert not info.artifact_installer or callable(attribute_at(info.artifact_installer))
    assert set(info.settings) <= set(TargetSpec.__dataclass_fields__)
    assert isinstance(info.scope_flavour, ScopeFlavour)


@each_backend
def test_a_search_on_it_finds_its_device(info: BackendInfo) -> None:
    """The first of its devices is the default; what it does not run on is refused."""
    assert len(set(info.devices)) == len(info.devices) > 0
    spec, _ = Request("llama", backend=info.name).target()
    assert (spec.backend, spec.device) == (info.name, info.devices[0])
    assert set(info.settings_of(spec)) == set(info.settings)
    for device in {"cpu", "cuda", "npu"} - set(info.devices):
        with pytest.raises(BadInputError, match=f"{info.name} runs on .*, not on {device}") as refused:
            Request("llama", backend=info.name, device=device).target()
        assert is_one_line(refused.value)


@each_backend
def test_spaces_list_its_options(info: BackendInfo) -> None:
    """Under its own name, or that of the backend that it plans for."""
    for own in info.devices:
        name, device = info.in_spaces(own)
        listing = backend_info(name)
        assert device in listing.devices
        assert listing.plans_for is None
        assert listing.options.rules.defaults == info.options.rules.defaults


@each_device
def test_what_it_tries_by_itself_it_accepts(info: BackendInfo, device: str) -> None:
    """Every value, the compiler's default among them, and nothing that may change bits."""
    rules = info.options.rules
    for name, values in info.options.default_choices(device).items():
        assert values
        for value in {*values, rules.defaults[name]}:
            info.options.check_searched(device, name, value)
        assert not rules.changes_bits & {(name, value) for value in values}


@each_device
def test_values_that_may_change_bits_come_after_those_that_do_not(info: BackendInfo, device: str) -> None:
    """And only where they are asked for."""
    exact = info.options.default_choices(device)
    found = with_bit_changing(info.options, exact, device)
    added = {(name, value) for name in found for value in found[name] if value not in exact[name]}
    assert added <= info.options.rules.changes_bits
    assert bool(added) == bool(info.options.bit_changing_values(device))
    assert all(found[name][: len(values)] == list(values) for name, values in exact.items())
    for name, value in added:
        info.options.check_searched(device, name, value)


@each_device
def test_unknown_options_are_refused_in_one_line(info: BackendInfo, device: str) -> None:
    """Of scopes and of the whole step, and values that no option has."""
    with pytest.raises(SpaceError, match="no option 'no-such-option'") as refused:
        info.options.check_searched(device, "no-such-option", 1)
    assert is_one_line(refused.value)
    with pytest.raises(PlanError, match="no-such-option") as refused_plan:
        info.options.check_step(Plan(options=(("no-such-option", 1),)))
    assert is_one_line(refused_plan.value)
    for name in info.options.default_choices(device):
        with pytest.raises(SpaceError, match=name) as refused:
            info.options.check_searched(device, name, "no such value")
        assert is_one_line(refused.value)


@each_backend
def test_options_of_the_whole_step_have_defaults(info: BackendInfo) -> None:
    """Which hold where the plan says nothing."""
    rules = info.options.rules
    assert step_options(info.options, PLAN) == {name: rules.defaults[name] for name in rules.of_step}
    info.options.check_step(PLAN)


@each_device
def test_its_part_of_a_fingerprint_is_text(info: BackendInfo, device: str) -> None:
    """And the same when it is asked again."""
    spec = PresetSpec("llama", scale="tiny", backend=info.name, device=device)
    parts = info.fingerprint(spec)
    assert all(isinstance(text, str) for item in parts.items() for text in item)
    assert parts == info.fingerprint(spec)


@each_device
def test_a_workers_environment_is_text(info: BackendInfo, device: str) -> None:
    """Folders of its own are for processes of its own."""
    assert all(isinstance(text, str) for item in info.worker_environment(device).items() for text in item)
    assert info.needs_fresh_process or not info.worker_folders
    assert all(not Path(folder).is_absolute() for folder in info.worker_folders.values())


@each_backend
def test_what_is_missing_comes_with_a_way_to_get_it(info: BackendInfo) -> None:
    """In rows of its own."""
    for finding in attribute_at(info.examine)() if info.examine else ():
        assert finding.backend == info.name
        assert finding.fix or finding.state == "ok"


@each_backend
@pytest.mark.usefixtures("all_final_processes")
def test_what_is_computed_is_the_same_in_each_process(info: BackendInfo) -> None:
    """One is enough; what is measured has the luck of each."""
    assert (info.final_processes == 1) == info.is_simulated
    assert info.runs_superkernels == (info.scope_flavour is not ScopeFlavour.REGION and not info.is_simulated)


@each_backend
@pytest.mark.parametrize("reason", [None, *Reason])
def test_a_rescue_is_an_option_that_the_plan_has_not(info: BackendInfo, reason: Reason | None) -> None:
    """Once it is there, there is nothing more to try; a plan that passed needs none."""
    rescue = info.rescue(Outcome(reason, "run did not end"), PLAN)
    if rescue is not None:
        name, value = rescue
        assert name in info.options.rules.defaults
        assert reason not in (None, Reason.SLOWER, Reason.MISMATCH)
        assert info.rescue(Outcome(reason, "run did not end"), PLAN.with_option(name, value)) is None


def test_a_hanging_superkernel_is_rescued_by_feeding_its_barriers() -> None:
    """On both backends that have them; a compile that does not end is another matter."""
    for name in ("npu", "sim"):
        rescue = backend_info(name).rescue
        assert rescue(Outcome(Reason.TIMEOUT, "no answer", stage=Stage.MEASURE), PLAN) == ("feed-sync-all", 1)
        assert rescue(Outcome(Reason.TIMEOUT, "no answer", stage=Stage.COMPILE), PLAN) is None


def test_a_device_has_a_backend() -> None:
    """The one that measures on it; Inductor where none is named."""
    assert [backend_on(device).name for device in (None, "cpu", "cuda", "npu")] == ["inductor"] * 3 + ["npu"]


def test_names_are_unique_and_others_are_refused() -> None:
    """With the nearest one."""
    names = [info.name for info in all_backends()]
    assert len(set(names)) == len(names)
    with pytest.raises(BadInputError, match="no backend 'inducter'; did you mean 'inductor'") as refused:
        backend_info("inducter")
    assert is_one_line(refused.value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("no_such_module:INFO", "'toy' .* cannot be imported: ModuleNotFoundError"),
        ("sktune.backends.info:FINAL_PROCESSES", "is int, not a BackendInfo"),
        ("sktune.sim.info:INFO", "has the name 'sim' of another backend"),
    ],
)
def test_a_package_with_a_broken_backend_is_named(monkeypatch: pytest.MonkeyPatch, value: str, message: str) -> None:
    """In one line; the backends of sktune stand."""
    point = EntryPoint("toy", value, sktune.backends.ENTRY_POINTS)
    monkeypatch.setattr(sktune.backends, "entry_points", lambda group: [point])
    with pytest.raises(BadInputError, match=message) as refused:
        all_backends.__wrapped__()
    assert is_one_line(refused.value)
    assert backend_info("inductor").name == "inductor"

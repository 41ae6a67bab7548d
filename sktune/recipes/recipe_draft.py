"""A draft of a recipe: which settings differ in the YAML's copy and why, and what else its YAML says about a run."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sktune.core.errors import BadInputError
from sktune.core.files import read_text, source_text
from sktune.core.plain_data import load_yaml
from sktune.program.sktune_program.task import HOSTS_VARIABLE, VERIFIED_STEPS
from sktune.recipes.checkout import A3_DIES, DIES
from sktune.recipes.program_checks import Check, CheckedSettings, ProgramChecks
from sktune.source.yaml_flag import CAPTURED_MODE, MODE, NEEDED_MODE, STATIC_KERNELS, static_kernels
from sktune.targets.recipe import FLAG

MAX_NEW_TOKENS = 160
"""Enough decode steps to alternate between plan and baseline; more would only make runs longer."""
MIN_NEW_TOKENS = 32
"""Enough decode steps to verify a plan and to measure it."""
PLATFORM = "platform_version"
_PLATFORMS = ("A2", "A3", "950")
_NAMES_MODE = {NEEDED_MODE: re.compile(r"ge_?graph"), CAPTURED_MODE: re.compile(r"npugraph_ex")}
"""By mode, the pattern that a model's sources contain if they support it."""
_MODES = {"eager": "nothing is compiled in it"}
"""By mode without scopes, the reason, for messages."""


@dataclass
class RecipeDraft:
    """A draft of a recipe, with notes for the user.

    Attributes:
        values: content of the recipe's file.
        found: notes on what was found, one line each.
        to_do: what the user has to do, or to decide, before a search.
        unknown: what only a run shows.
    """

    values: dict[str, Any]
    found: list[str] = field(default_factory=list)
    to_do: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Text of the recipe's file."""
        kinds = {"found": self.found, "TO DO": self.to_do, "NOT KNOWN before a run": self.unknown}
        notes = [f"# {kind}: {line}" for kind, lines in kinds.items() for line in lines]
        engine = "--engine ray --address HOST:6379 " if self.values.get("hosts", 1) > 1 else ""
        search = f"sktune search --recipe THIS_FILE {engine}--trials 20"
        head = [f"# Search with: {search}   (keys: docs/reference/recipe.md in sktune's source)", *notes]
        return "\n".join(head) + "\n" + yaml.safe_dump(self.values, sort_keys=False, allow_unicode=True, width=110)


def read_settings(file: Path) -> dict[str, Any]:
    """Return the values of a YAML file by dotted path."""
    data = load_yaml(read_text(file, BadInputError, "name the program's YAML"), str(file), BadInputError) or {}
    return dict(_leaves(data, ()))


def by_key(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings by the last part of their path; the first one of a name counts."""
    values: dict[str, Any] = {}
    for path, value in settings.items():
        values.setdefault(path.rpartition(".")[2], value)
    return values


def dies_of(known: Mapping[str, Any]) -> int:
    """Return the dies of one server of the settings' platform."""
    return DIES.get(str(known.get(PLATFORM)), A3_DIES)


def data_parallel_groups(known: Mapping[str, Any]) -> int:
    """Return how many groups of ranks share the batch; 0 if the settings do not say it."""
    world, parallel = known.get("world_size"), known.get("attn_tp_size")
    if isinstance(world, int) and isinstance(parallel, int) and parallel > 0 and world % parallel == 0:
        return world // parallel
    return 0


def add_yaml(
    draft: RecipeDraft,
    file: Path,
    settings: Mapping[str, Any],
    root: Path,
    mode: str = NEEDED_MODE,
    set_env: Path | None = None,
) -> None:
    """Add the YAML, what differs in its copy, and what it says about ranks and batch.

    Args:
        draft: is changed.
        file: the YAML.
        settings: its values by dotted path.
        root: the recipe's directory.
        mode: the mode of the copy.
        set_env: the script below it that lists the servers, if they are known to be listed there.
    """
    changes = {}
    for path, (new, why) in _changes(settings, mode).items():
        draft.found.append(f"{path} is {settings[path]!r}: {why}")
        if new is not None:
            changes[path] = new
    draft.values["yaml"] = {"file": str(file.relative_to(root)) if file.is_relative_to(root) else str(file)}
    if changes:
        draft.values["yaml"]["set"] = changes
    _add_ranks(draft, by_key(settings), root, set_env)


def _changes(settings: Mapping[str, Any], mode: str) -> dict[str, tuple[Any, str]]:
    """Return the settings that differ in the copy or are to be noted, with the new value, None for the own, and why."""
    changes = {}
    for path, value in settings.items():
        if (change := _changed(path.rpartition(".")[2], value, mode)) is not None:
            changes[path] = change
    return changes


def _changed(key: str, value: Any, mode: str) -> tuple[Any, str] | None:
    """Return the value that a setting has in the copy, None for its own, and why; None if there is nothing to note."""
    is_count = isinstance(value, int) and not isinstance(value, bool)
    if key == MODE and value not in (NEEDED_MODE, CAPTURED_MODE):
        why = _MODES.get(str(value), "it does not make GE graphs")
        return mode, f"{why}; {mode} in the copy, so the baseline is the step in that mode, not yours"
    if key == STATIC_KERNELS and value and mode != CAPTURED_MODE:
        return False, f"False in the copy, as {mode} has no static kernels"
    if key == "enable_cache_compile" and value:
        return False, "False in the copy, as every plan must be compiled"
    if key == "enable_profiler" and value:
        return False, "False in the copy, as a profiler slows the steps down"
    if key == "max_new_tokens" and is_count and value > MAX_NEW_TOKENS:
        return MAX_NEW_TOKENS, f"{MAX_NEW_TOKENS} in the copy, so that runs are short"
    if key == "max_new_tokens" and is_count and value <= VERIFIED_STEPS:
        return MIN_NEW_TOKENS, (
            f"{MIN_NEW_TOKENS} in the copy, as {value - 1} decode steps follow the prefill, and a plan is verified on "
            f"{VERIFIED_STEPS}"
        )
    if key == FLAG and value:
        return None, "False in the copy, as sktune's plans replace the program's own scopes"
    if key == "temperature" and value:
        return 0.0, "0.0 in the copy, as outputs are compared bit by bit"
    if key == "next_n" and value:
        return None, "a step's latency includes the main and the draft model"
    return None


def copy_mode(settings: Mapping[str, Any], sources: list[Path], folder: Path) -> str:
    """Return the mode of the copy: the YAML's own, or the first that the model's sources name and no check refuses.

    Args:
        settings: of the YAML, by dotted path.
        sources: the program's.
        folder: of the model, whose sources name the modes.
    """
    if (mode := by_key(settings).get(MODE, NEEDED_MODE)) in (NEEDED_MODE, CAPTURED_MODE):
        return str(mode)
    named = _named_modes(sources, folder) or [NEEDED_MODE]
    return next((mode for mode in named if not _refusing(_verdicts(sources, settings, mode))), named[0])


def _named_modes(sources: list[Path], folder: Path) -> list[str]:
    """Return the modes with scopes that the sources of a folder name."""
    texts = [source_text(path) for path in sources if path.is_relative_to(folder)]
    return [mode for mode, pattern in _NAMES_MODE.items() if any(pattern.search(text) for text in texts)]


def add_mode(draft: RecipeDraft, sources: list[Path], settings: Mapping[str, Any], folder: Path, mode: str) -> None:
    """Adapt what depends on the mode of the copy, and say what is not known of it.

    Raises:
        BadInputError: the program's own checks in ``sources`` refuse the copy, or the model's own the YAML.
    """
    known = {STATIC_KERNELS: False, **by_key(settings)}
    refusing_yaml = _refused_everywhere(_by_platform(sources, known, known))
    for check in sorted(refusing_yaml, key=lambda check: (str(check.file), check.line)):
        if check.file.is_relative_to(folder):
            raise BadInputError(
                f"{draft.values['name']} cannot be tuned: the program refuses the YAML as it is, as "
                f"`{check.condition}` holds ({_shown(check, draft)}); fix it, or name another YAML with --yaml"
            )
        draft.unknown.append(
            f"whether the program accepts the YAML as it is: not if it runs the check `{check.condition}` "
            f"({_shown(check, draft)})"
        )
    if mode == CAPTURED_MODE:
        _add_static_kernels(draft, settings)
    if not any(path.rpartition(".")[2] == MODE for path in draft.values["yaml"].get("set", {})):
        return
    named = _named_modes(sources, folder)
    if mode == CAPTURED_MODE:
        why = "the program's checks refuse the other" if NEEDED_MODE in named else "the model's sources name no other"
        draft.found.append(f"of the modes with scopes, {NEEDED_MODE} and {CAPTURED_MODE}, {why}")
    verdicts = _verdicts(sources, settings, mode)
    if refusing := _refusing(verdicts):
        raise BadInputError(
            f"{draft.values['name']} cannot be tuned: sktune tunes scopes of {mode}, and the program refuses "
            f"this mode, as `{refusing.condition}` holds ({_shown(refusing, draft)}); name another YAML with --yaml"
        )
    draft.unknown += _doubts(verdicts, draft, mode)
    if mode not in named:
        draft.unknown.append(f"whether {folder.name} runs in {mode}: its sources do not mention it")


def _add_static_kernels(draft: RecipeDraft, settings: Mapping[str, Any]) -> None:
    """Turn static kernels on, which SuperKernels need."""
    path = ".".join(static_kernels([tuple(each.split(".")) for each in settings]))
    if settings.get(path) is not True:
        draft.values["yaml"].setdefault("set", {})[path] = True
        draft.found.append(
            f"{path} is {settings.get(path, 'not set')!s}: True in the copy, as SuperKernels of {CAPTURED_MODE} need "
            "static kernels; the baseline has them, too, so it is not your step"
        )


def _verdicts(sources: list[Path], settings: Mapping[str, Any], mode: str) -> dict[str, CheckedSettings]:
    """Return what the program's checks say of the copy, for each platform on which they accept the YAML as it is."""
    changed = {path: new for path, (new, _) in _changes(settings, mode).items() if new is not None}
    before = {STATIC_KERNELS: False, **by_key(settings)}
    after = {STATIC_KERNELS: False, **by_key({**settings, **changed})}
    if mode == CAPTURED_MODE:
        after[STATIC_KERNELS] = True
    verdicts = _by_platform(sources, before, after)
    everywhere = _refused_everywhere(verdicts)
    return {name: verdict for name, verdict in verdicts.items() if verdict.refused_before == everywhere}


def _by_platform(
    sources: list[Path], before: Mapping[str, Any], after: Mapping[str, Any]
) -> dict[str, CheckedSettings]:
    """Return what the program's checks say on each platform that the settings leave open."""
    checks = ProgramChecks(sources, MODE)
    platforms = [str(before[PLATFORM])] if before.get(PLATFORM) else _PLATFORMS
    return {name: checks.verdict({**before, PLATFORM: name}, {**after, PLATFORM: name}) for name in platforms}


def _refused_everywhere(verdicts: Mapping[str, CheckedSettings]) -> frozenset[Check]:
    return frozenset.intersection(*(verdict.refused_before for verdict in verdicts.values()))


def _refusing(verdicts: Mapping[str, CheckedSettings]) -> Check | None:
    """Return a check that refuses the copy on every platform that accepts the YAML."""
    if verdicts and all(verdict.refusing for verdict in verdicts.values()):
        return next(iter(verdicts.values())).refusing[0]
    return None


def _doubts(verdicts: Mapping[str, CheckedSettings], draft: RecipeDraft, mode: str) -> list[str]:
    """Return a line for each check that may refuse the copy."""
    on: dict[Check, list[str]] = {}
    for platform, verdict in verdicts.items():
        for check in (*verdict.refusing, *verdict.undecided):
            on.setdefault(check, []).append(platform)
    return [
        f"whether the program accepts {mode}"
        + (f" on {' and '.join(platforms)}" if len(platforms) < len(verdicts) else "")
        + f": not if `{check.condition}` ({_shown(check, draft)})"
        for check, platforms in on.items()
    ]


def _shown(check: Check, draft: RecipeDraft) -> str:
    root = Path(draft.values["directory"])
    return f"{check.file.relative_to(root) if check.file.is_relative_to(root) else check.file}:{check.line}"


def _add_ranks(draft: RecipeDraft, known: Mapping[str, Any], root: Path, set_env: Path | None) -> None:
    world, dies = known.get("world_size"), dies_of(known)
    if not isinstance(world, int):
        draft.to_do.append("set `ranks`, if it starts more than 1: the YAML has no world_size")
        return
    draft.values["ranks"] = min(world, dies)
    draft.found.append(f"world_size is {world}")
    hosts = -(-world // dies)
    if hosts > 1 and set_env:
        draft.values["hosts"] = hosts
        draft.found.append(f"it needs {hosts} servers with {dies} dies each, which --engine ray chooses")
        listed = root / set_env
        if not listed.is_file() or HOSTS_VARIABLE not in source_text(listed):
            draft.to_do.append(
                f"write `export IPs=(${{{HOSTS_VARIABLE}//,/ }})` into {set_env.as_posix()}, in a folder "
                "that all servers share (docs/how-to/many-dies.md in sktune's source)"
            )
    elif hosts > 1:
        draft.to_do.append(
            f"set `hosts` to {hosts}, as in docs/how-to/many-dies.md in sktune's source, or tune with a YAML for one "
            "host, and use the plan with this YAML: without `hosts`, only the ranks of one are started"
        )
    if str(known.get(PLATFORM)) == "950":
        draft.unknown.append("whether SuperKernels work on Atlas 950: TorchAir's documents name A3 and A2")
    elif not known.get(PLATFORM) and dies >= world > min(DIES.values()):
        draft.unknown.append(
            f"the platform: the YAML has no {PLATFORM}; {world} ranks are one Atlas A3 server, but two of Atlas 950"
        )
    _add_batch(draft, known)


def _add_batch(draft: RecipeDraft, known: Mapping[str, Any]) -> None:
    batch, groups = known.get("batch_size"), data_parallel_groups(known)
    if not isinstance(batch, int):
        draft.unknown.append("the batch size: the YAML has no batch_size; a plan is tuned for the one that is run")
        return
    share = ""
    if groups and batch % groups:
        draft.to_do.append(
            f"set batch_size to a multiple of {groups}: it is {batch}, and world_size / attn_tp_size are {groups} "
            "data-parallel groups"
        )
    elif groups:
        share = f", {batch // groups} in each of {groups} data-parallel groups" if groups > 1 else ", in one group"
    draft.found.append(f"batch_size is {batch}{share}; a plan is tuned for this batch")


def _leaves(data: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _leaves(value, (*path, str(key)))
    elif path:
        yield ".".join(path), data

"""Checks what a search with a recipe needs on this host; the program is not started, and nothing is compiled."""

import os
import re
import shutil
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sktune.backends.availability import examine_program
from sktune.backends.program_python import look_into
from sktune.backends.this_machine import device_memory
from sktune.core.errors import BadInputError, SktuneError
from sktune.core.events.commands import Finding, State
from sktune.core.files import source_text
from sktune.measure.machine import available_memory
from sktune.recipes.launch_scripts import is_placeholder, launch_scripts
from sktune.recipes.measured_step import DUMMY, LAYERS
from sktune.recipes.peers import LocalPeer
from sktune.recipes.recipe_draft import by_key, read_settings
from sktune.recipes.yaml_copy import copy_paths, is_foreign, varied_yaml
from sktune.targets.recipe import Recipe, read_recipe

OTHER_INFERENCE = "other inference"
"""The check for programs that would disturb every measurement; a run waits for them to end."""
_NAME = "recipe"
_WEIGHTS = frozenset({".safetensors", ".bin", ".pt", ".pth"})
_PORTS = ("MASTER_PORT", "HCCL_IF_BASE_PORT")
_PYTHON = re.compile(r"(?<![\w./$}{-])([\w./-]*python[\d.]*)(?=\s)")
_NPU_BACKENDS = frozenset({"npu", "npugraph-ex"})


def examine_recipe(path: Path, python: str | None = None) -> tuple[Finding, ...]:
    """Return a finding for each thing that a search with a recipe needs; it could start if all are good.

    Args:
        path: of the recipe.
        python: of the program; None for the one that its command or its scripts name.

    Raises:
        TargetError: it is no recipe, or a file that it names is missing.
        BadInputError: ``python`` does not exist or is no Python.
    """
    return tuple(_RecipeCheck(read_recipe(path), python).findings())


class _RecipeCheck:
    """Examines a recipe with absolute paths."""

    def __init__(self, recipe: Recipe, python: str | None) -> None:
        self._recipe, self._python = recipe, python
        self._argv = recipe.argv()
        self._variables = recipe.variables({})
        self._scripts = launch_scripts(self._argv, recipe.directory)
        on_npu = recipe.backend in _NPU_BACKENDS
        self._device = recipe.device or ("npu" if on_npu else "cpu")

    def findings(self) -> Iterator[Finding]:
        """Yield the findings."""
        yield self._command()
        settings: dict[str, Any] = {}
        if self._recipe.yaml:
            yield (copy := self._yaml_copy())
            if copy.state is State.OK:
                settings = by_key({**read_settings(self._recipe.yaml.file), **self._recipe.yaml.set})
        yield from self._placeholders()
        yield from self._ranks(settings)
        yield from self._weights(settings)
        yield from self._ports()
        yield from self._logs()
        if self._recipe.space and not self._recipe.space.is_file():
            yield _finding("space", State.MISSING, f"there is no file {self._recipe.space}", "fix the recipe's space")
        if other := LocalPeer().other_inference(self._recipe.other_inference):
            fix = "end it, or wait; it would disturb every measurement"
            yield _finding(OTHER_INFERENCE, State.WRONG, f"process {other[0]} runs ({other[1][:80]})", fix)
        else:
            yield _finding(OTHER_INFERENCE, State.OK, "none runs")
        yield from self._python_findings()

    def _command(self) -> Finding:
        program = self._argv[0]
        path = self._variables.get("PATH", os.environ.get("PATH"))
        inside = self._recipe.directory / program
        found = shutil.which(str(inside) if "/" in program else program, path=path)
        if found is None:
            return _finding("command", State.MISSING, f"there is no program {program}", "fix the recipe's command")
        for argument in self._argv[1:]:
            if not re.fullmatch(r"[^\s-]\S*\.(sh|py)", argument):  # no file, such as the text after `bash -c`
                continue
            if not (self._recipe.directory / argument).is_file():
                missing = f"there is no {argument} in {self._recipe.directory}"
                return _finding("command", State.MISSING, missing, "fix the recipe's command or directory")
        return _finding("command", State.OK, f"{found}, in {self._recipe.directory}")

    def _yaml_copy(self) -> Finding:
        assert self._recipe.yaml is not None
        file = self._recipe.yaml.file
        try:
            varied_yaml(file, self._recipe.yaml.set)
        except SktuneError as failure:
            return _finding("YAML", State.WRONG, str(failure), "fix the recipe's yaml")
        copy = copy_paths(file, [])[0]
        if is_foreign(copy):
            return _finding("YAML", State.WRONG, f"{copy} is yours, and its copy would overwrite it", "rename it")
        if copy.exists():
            return _finding("YAML", State.OK, f"{file}; a copy is there, of a search that runs or was killed")
        if not os.access(file.parent, os.W_OK):
            fix = "make it writable; launch scripts look for the copy there"
            return _finding("YAML", State.WRONG, f"no copy can be written to {file.parent}", fix)
        return _finding("YAML", State.OK, f"{file}, its copy is {copy.name}")

    def _placeholders(self) -> Iterator[Finding]:
        if not self._scripts.files:
            return
        names = [path.name for path in self._scripts.files]
        if found := list(self._scripts.placeholders()):
            places = ", ".join(f"{each.text} in {self._shown(each.file)}:{each.line}" for each in found)
            yield _finding("start scripts", State.WRONG, f"placeholders: {places}", "write your paths there")
        else:
            yield _finding("start scripts", State.OK, ", ".join(names))
        for file, line, path in self._scripts.environment_files():
            if not is_placeholder(path) and not Path(path).is_file():
                found_text = f"{self._shown(file)}:{line} sources {path}, which does not exist"
                yield _finding("start scripts", State.MISSING, found_text, "write the path of your installation there")

    def _ranks(self, settings: Mapping[str, Any]) -> Iterator[Finding]:
        ranks, world = self._recipe.ranks, settings.get("world_size")
        if isinstance(world, int) and world != self._recipe.all_ranks:
            found = f"{self._recipe.all_ranks} in the recipe, but world_size is {world}"
            yield _finding("ranks", State.WRONG, found, "make ranks, or ranks times hosts, the world_size")
            return
        if self._recipe.hosts > 1:
            yield _finding("hosts", State.OK, f"{self._recipe.hosts} (--engine ray); only this one is examined")
        if self._device == "cpu":
            yield _finding("ranks", State.OK, f"{ranks} on the CPU")
            return
        count = len(device_memory(self._device))
        visible = self._variables.get("ASCEND_RT_VISIBLE_DEVICES", os.environ.get("ASCEND_RT_VISIBLE_DEVICES", ""))
        if visible and self._device == "npu":
            count = min(count, len(visible.split(",")))
        state = State.OK if count >= ranks else State.MISSING
        fix = "" if count >= ranks else "run on a host with as many devices, or use a YAML with fewer ranks"
        yield _finding("ranks", state, f"{ranks}, for {count} devices ({self._device})", fix)

    def _weights(self, settings: Mapping[str, Any]) -> Iterator[Finding]:
        path = settings.get("model_path")
        if not isinstance(path, str):
            return
        if is_placeholder(path):
            yield _finding("weights", State.WRONG, f"model_path is {path}", "set model_path to the weights' folder")
            return
        folder = self._recipe.directory / path
        if not (folder / "config.json").is_file():
            what = "there is no config.json in it" if folder.is_dir() else "there is no such folder"
            fix = "download the weights, or set model_path in yaml.set"
            yield _finding("weights", State.MISSING, f"{folder}: {what}", fix)
            return
        size = sum(file.stat().st_size for file in folder.iterdir() if file.suffix in _WEIGHTS and file.is_file())
        if settings.get(DUMMY) is False:
            yield _finding("weights", State.OK, f"random ones, of the shapes in {folder / 'config.json'}")
        elif not size:
            fix = "download the weights there, or set with_ckpt: false for random ones"
            yield _finding("weights", State.MISSING, f"there are none in {folder}", fix)
        else:
            yield _finding("weights", State.OK, f"{_gib(size)} in {folder}")
        if size and LAYERS not in settings:
            yield from self._memory(size)

    def _memory(self, size: int) -> Iterator[Finding]:
        """Yield whether each rank's share of the weights fits into memory; what a step needs besides is not known."""
        share = size / self._recipe.all_ranks
        need = share * (self._recipe.ranks if self._device == "cpu" else 1)
        free = available_memory()
        what = f"{_gib(free)} free, {_gib(need)} of weights" + ("" if self._device == "cpu" else " for each rank")
        yield _enough("memory of the host", free >= need, what)
        if memory := device_memory(self._device)[: self._recipe.ranks]:
            least = min(each.free for each in memory)
            what = f"{_gib(least)} free on the fullest, {_gib(share)} of weights for each rank"
            yield _enough("memory of devices", least >= share, what)

    def _ports(self) -> Iterator[Finding]:
        for name in _PORTS:
            text = self._variables.get(name) or self._scripts.value(name) or os.environ.get(name, "")
            if not text.isdigit() or not 0 < int(text) < 1 << 16:
                continue
            if _is_free(int(text)):
                yield _finding(name, State.OK, f"{text} is free")
            else:
                yield _finding(name, State.WRONG, f"{text} is in use", "end what uses it, or change the port")

    def _logs(self) -> Iterator[Finding]:
        if self._recipe.logs is None:
            return
        fixed = list(Path(self._recipe.logs).parent.parts)
        glob = next((number for number, part in enumerate(fixed) if re.search(r"[*?\[]", part)), len(fixed))
        folder = self._recipe.directory.joinpath(*fixed[:glob])
        there = next(each for each in (folder, *folder.parents) if each.is_dir())
        if os.access(there, os.W_OK):
            yield _finding("logs", State.OK, f"{folder} can be written")
        else:
            yield _finding("logs", State.WRONG, f"{there} cannot be written", "make it writable for the program")

    def _python_findings(self) -> Iterator[Finding]:
        sourced = [Path(path) for _, _, path in self._scripts.environment_files() if Path(path).is_file()]
        home = self._scripts.value("ASCEND_HOME_PATH")
        exported = {"ASCEND_HOME_PATH": home} if Path(home).is_dir() and home else {}
        name = self._python or self._program_python()
        try:
            python = look_into(name, sourced, {**exported, **self._variables})
        except BadInputError as failure:
            if self._python:
                raise
            yield Finding("all", "Python", State.MISSING, str(failure).partition(";")[0], "name it with --python")
            return
        wanted = {"all", self._recipe.backend} | ({"npu"} if self._device == "npu" else set())
        yield from (finding for finding in examine_program(python) if finding.backend in wanted)

    def _program_python(self) -> str:
        """Return the Python that the command is, is written for, or starts by a script; else ``python3``."""
        path = self._variables.get("PATH", os.environ.get("PATH"))
        program = self._argv[0]
        if "python" in Path(program).name:
            return str(self._recipe.directory / program) if "/" in program else program
        if found := shutil.which(program, path=path):
            with Path(found).open("rb") as file:
                first = file.readline(256).decode(errors="replace")
            named = [word for word in first.removeprefix("#!").split() if "python" in Path(word).name]
            if first.startswith("#!") and named:
                return named[0]
        for text in (" ".join(self._argv[1:]), *map(source_text, self._scripts.files)):
            if match := _PYTHON.search(text):
                return str(self._recipe.directory / match[1]) if "/" in match[1] else match[1]
        return "python3"

    def _shown(self, file: Path) -> str:
        directory = self._recipe.directory
        return str(file.relative_to(directory) if file.is_relative_to(directory) else file)


def _finding(what: str, state: State, found: str, fix: str = "") -> Finding:
    return Finding(_NAME, what, state, found, fix)


def _enough(what: str, is_enough: bool, found: str) -> Finding:
    fix = "" if is_enough else "free it, use more ranks, or set num_hidden_layers where the program has it"
    return _finding(what, State.OK if is_enough else State.WRONG, found, fix)


def _is_free(port: int) -> bool:
    with socket.socket() as attempt:
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as torch.distributed does
        try:
            attempt.bind(("", port))
        except OSError:
            return False
    return True


def _gib(size: float) -> str:
    return f"{size / (1 << 30):.1f} GiB"

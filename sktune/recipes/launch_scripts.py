"""What the shell scripts that start a program say, read without running them: files, placeholders, ports, sources."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from sktune.core.files import real_path, source_text

_SCRIPT = re.compile(r"[\w./${}-]+\.sh\b")
_ASSIGNED = re.compile(
    r"""(?:^|[\s;])(?:export\s+|declare\s+(?:-\w+\s+)*)?([A-Za-z_]\w*)=("[^"`]*"|'[^']*'|[^\s"'`;()]+)"""
)
_SOURCED = re.compile(r"""(?:^|[\s;&])(?:source|\.)\s+("[^"]+"|'[^']+'|[^\s;&|]+)""")
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
_PLACEHOLDER = re.compile(r"\byour_\w+|/path/to/[\w./-]*|<your[^>]*>", re.IGNORECASE)
_COMMENT = re.compile(r"(^|\s)#.*")


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A value that the user has not filled in yet: ``your_cann_pkgs_path``."""

    file: Path
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class LaunchScripts:
    """The scripts that a command runs or sources, as far as their names can be read.

    Attributes:
        files: of them, in the order in which they are named.
        options: what the command says for ``--name value``, by ``NAME``.
    """

    files: tuple[Path, ...]
    options: Mapping[str, str]

    def placeholders(self) -> Iterator[Placeholder]:
        """Yield the placeholders in assignments of paths."""
        for file, number, line in self._lines():
            for name, value in _ASSIGNED.findall(line):
                if name != "YAML_FILE_NAME" and (found := _PLACEHOLDER.search(value)):  # the command names the YAML
                    yield Placeholder(file, number, found[0])

    def value(self, name: str) -> str:
        """Return the first value that a variable is given, if it can be read without running anything; else empty."""
        known = dict(os.environ)
        for _, _, line in self._lines():
            for assigned, value in _ASSIGNED.findall(line):
                known[assigned] = _filled(_unquoted(value), known)
                if assigned == name and not re.search(r"[$`]", known[name]):
                    return known[name]
        return ""

    def environment_files(self) -> Iterator[tuple[Path, int, str]]:
        """Yield what the scripts source besides each other, such as CANN's ``setenv.bash``: script, line, path.

        A path that starts with a placeholder is yielded too; one with a variable of unknown value is not. Relative ones
        are those of files beside the script, such as ``venv/bin/activate``.
        """
        known = dict(os.environ)
        for file, number, line in self._lines():
            known |= {name: _filled(_unquoted(value), known) for name, value in _ASSIGNED.findall(line)}
            for named in _SOURCED.findall(line):
                path = _filled(_unquoted(named), known)
                if "$" in path:
                    continue
                if path.startswith("/") or _PLACEHOLDER.match(path):
                    yield file, number, path
                elif (beside := real_path(file.parent / path)).is_file() and beside not in self.files:
                    yield file, number, str(beside)

    def _lines(self) -> Iterator[tuple[Path, int, str]]:
        for file in self.files:
            for number, line in enumerate(source_text(file).splitlines(), 1):
                if text := _COMMENT.sub("", line):
                    yield file, number, text


def launch_scripts(argv: Sequence[str], directory: Path) -> LaunchScripts:
    """Return the scripts that a command runs in ``directory``, and those that they source."""
    options = {
        name.lstrip("-").replace("-", "_").upper(): value for name, value in pairwise(argv) if name.startswith("--")
    }
    inner = re.findall(r"\bcd\s+([\w./-]+)", " ".join(argv))
    homes = [directory, *(directory / name for name in inner)]
    found: list[Path] = []
    waiting = [path for argument in argv for name in _SCRIPT.findall(argument) for path in _existing(name, homes)]
    while waiting:
        file = waiting.pop(0)
        if file in found:
            continue
        found.append(file)
        for line in source_text(file).splitlines():
            for name in _SCRIPT.findall(_COMMENT.sub("", line)):
                waiting += _existing(_filled(name, options), [file.parent, *homes])
    return LaunchScripts(tuple(found), options)


def _existing(name: str, homes: Sequence[Path]) -> list[Path]:
    """Return the file that a script means, in the first folder that has it.

    A leading variable is that folder, and so is what precedes ``/`` but is no word: ``$(dirname "$0")/set_env.sh``.
    """
    if name.startswith("/") and Path(name).is_file():
        return [real_path(Path(name))]
    relative = re.sub(r"^(\$\{?\w+\}?)?/", "", name)
    if "$" in relative:
        return []
    return [real_path(home / relative) for home in homes if (home / relative).is_file()][:1]


def _filled(text: str, variables: Mapping[str, str]) -> str:
    """Return the text with the variables that have a known value replaced."""
    return _VARIABLE.sub(lambda match: variables.get(match[1], match[0]), text)


def _unquoted(value: str) -> str:
    return value[1:-1] if value[:1] in ("'", '"') else value


def is_placeholder(value: object) -> bool:
    """Whether a setting is a placeholder such as ``your_model_path``."""
    return isinstance(value, str) and _PLACEHOLDER.search(value) is not None

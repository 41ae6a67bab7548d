"""The hosts on which a recipe's program runs: its command is started, watched and ended on each of them alike."""

import os
import re
import secrets
import signal
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sktune.core.errors import BackendError, BadInputError
from sktune.core.files import create_text, real_path
from sktune.launch import SITE
from sktune.program.sktune_program.launch import RUN_VARIABLE
from sktune.program.sktune_program.task import HOST_RANK_VARIABLE
from sktune.worker.process_tree import ProcessTree, is_alive


@dataclass(frozen=True, slots=True)
class HostCommand:
    """The command of a run, as one host starts it.

    Attributes:
        argv: started without a shell.
        directory: its working folder.
        variables: added to the host's own environment; ``PYTHONPATH`` goes before the host's.
        log: gets its output.
    """

    argv: Sequence[str]
    directory: Path
    variables: Mapping[str, str]
    log: Path


@dataclass(frozen=True, slots=True)
class HostState:
    """What has become of a run on one host.

    Attributes:
        exit_code: the command's, negative for a signal, once all that it started has ended; None until then.
        is_running: whether the command itself runs.
        alive: those of the processes asked about that run.
    """

    exit_code: int | None
    is_running: bool
    alive: frozenset[int]


class Peer(Protocol):
    """A host of a program: this one, or another of its group.

    Every method may raise ``PeerLostError``.

    Attributes:
        name: of the host, unique in its group; empty if the program runs on one host.
        address: under which the others reach it.
    """

    @property
    def name(self) -> str: ...

    @property
    def address(self) -> str: ...

    def start(self, command: HostCommand, /) -> None:
        """Start the command; what ran before has ended.

        Raises:
            BackendError: it cannot be started.
        """
        ...

    def poll(self, pids: Collection[int], /) -> HostState:
        """Return what has become of the command, and which of the processes run."""
        ...

    def stop(self) -> None:
        """Kill every process of the run on this host, and no other."""
        ...

    def other_inference(self, pattern: str, /) -> tuple[int, str] | None:
        """Return ID and command line of a process whose command line matches; None if there is none."""
        ...

    def reads(self, path: Path, text: str, /) -> bool:
        """Whether this host finds ``text`` in a file."""
        ...


class LocalPeer:
    """The host of this process; a ``Peer``."""

    def __init__(self, name: str = "", address: str = "") -> None:
        self.name, self.address = name, address
        self._tree: ProcessTree | None = None
        self._marks: set[bytes] = set()

    def start(self, command: HostCommand, /) -> None:
        """See ``Peer.start``."""
        own = command.variables.get("PYTHONPATH"), os.environ.get("PYTHONPATH")
        environment = {**os.environ, **command.variables}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(SITE), *own)))
        names = [RUN_VARIABLE, *({HOST_RANK_VARIABLE} & command.variables.keys())]
        self._marks = {os.fsencode(f"{name}={command.variables[name]}") for name in names}
        try:
            with command.log.open("wb") as output:
                self._tree = ProcessTree(command.argv, command.directory, environment, output, lingers=True)
        except OSError as failure:
            where = f" on {self.name}" if self.name else ""
            raise BackendError(
                f"the recipe's command cannot be started{where}: {failure}; fix command or directory"
            ) from failure

    def poll(self, pids: Collection[int], /) -> HostState:
        """See ``Peer.poll``."""
        assert self._tree is not None
        return HostState(self._tree.poll(), is_alive(self._tree.pid), frozenset(filter(is_alive, pids)))

    def stop(self) -> None:
        """See ``Peer.stop``."""
        if self._tree is None:
            return
        self._tree.stop()
        for pid in self.members():  # started by a service, or left over because somebody has killed the keeper
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def members(self) -> list[int]:
        """Return the processes of the latest run, in whatever session they are."""
        if not self._marks:
            return []
        return [pid for pid in _pids() if self._marks <= {*_read(pid, "environ").split(b"\0")}]

    def other_inference(self, pattern: str, /) -> tuple[int, str] | None:
        """See ``Peer.other_inference``."""
        compiled = re.compile(pattern)
        for pid in _pids():
            line = _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
            if pid != os.getpid() and compiled.search(line):
                return pid, line
        return None

    def reads(self, path: Path, text: str, /) -> bool:
        """See ``Peer.reads``."""
        with suppress(OSError, UnicodeDecodeError):
            return path.read_text() == text
        return False


def check_shared(hosts: Sequence[Peer], folders: Iterable[Path]) -> None:
    """Raise ``BadInputError`` unless all hosts see what this one, the first, writes to these folders."""
    token = secrets.token_hex(8)
    for folder in map(real_path, folders):
        file = folder / f".sktune-{token}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            create_text(file, token)
            blind = [host.name for host in hosts if not host.reads(file, token)]
        finally:
            file.unlink(missing_ok=True)
        if blind:
            raise BadInputError(
                f"{' and '.join(blind)} cannot see what {hosts[0].name} writes to {folder}; a program on several "
                "hosts needs this folder at the same path on storage that all of them share"
            )


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""  # it has ended, or belongs to someone else

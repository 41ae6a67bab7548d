"""A private PostgreSQL server: the real one of this machine, with its data in a folder of the session's."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

FAST = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "shared_buffers=16MB", "max_wal_senders=0")
NEEDED = "initdb, pg_ctl, createdb: install Debian's package postgresql"


def programs() -> Path | None:
    """Return the folder of the newest server's programs, None if there is none: Debian does not put them on PATH."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: float(folder.parent.name))
    found = shutil.which("initdb")
    folders += [Path(found).resolve().parent] if found else []
    return next((folder for folder in reversed(folders) if (folder / "initdb").exists()), None)


@dataclass(frozen=True)
class Server:
    """A server that listens on a socket in ``folder`` only.

    Attributes:
        folder: of its socket, data and log.
        bin: folder of its programs.
        user: whom it runs as; None for this process's user, which must not be root.
    """

    folder: Path
    bin: Path
    user: str | None

    def url(self, database: str) -> str:
        """Return the URL of a database."""
        return f"postgresql://tests@/{database}?host={self.folder}"

    def create(self, database: str) -> str:
        """Create a database, and return its URL."""
        self._run("createdb", "-h", str(self.folder), "-U", "tests", database)
        return self.url(database)

    def initialise(self) -> None:
        """Create the data folder."""
        self._run("initdb", "-D", str(self.folder / "data"), "-U", "tests", "-A", "trust", "-N", "-E", "UTF8")
        lines = [*FAST, "listen_addresses=''", f"unix_socket_directories='{self.folder}'"]
        with (self.folder / "data" / "postgresql.conf").open("a") as configuration:
            configuration.writelines(f"{line}\n" for line in lines)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._control("start", "-l", str(self.folder / "log"))

    def stop(self) -> None:
        """Stop it at once: connections are cut."""
        self._control("stop", "-m", "immediate")

    def _control(self, *words: str) -> None:
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-w", "-s", *words)

    def _run(self, program: str, *words: str) -> None:
        as_user: Sequence[str] = ("setpriv", f"--reuid={self.user}", "--clear-groups", "--") if self.user else ()
        command = [*as_user, str(self.bin / program), *words]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@contextmanager
def serving() -> Iterator[Server]:
    """Run a server; skip the test if it is not installed, or may only be started by a user that is not there."""
    folder_of_programs = programs()
    if folder_of_programs is None:
        pytest.skip(f"no PostgreSQL server here: it needs {NEEDED}")
    user = None
    if os.geteuid() == 0:  # the server refuses root
        user = "postgres"
        if user not in {each.pw_name for each in pwd.getpwall()}:
            pytest.skip("PostgreSQL does not run as root, and there is no user postgres")
    # Not pytest's folder, which other users cannot read; a socket's path is at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as name:
        folder = Path(name)
        if user:
            shutil.chown(folder, user)
        server = Server(folder, folder_of_programs, user)
        server.initialise()
        server.start()
        try:
            yield server
        finally:
            server.stop()

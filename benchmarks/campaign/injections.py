"""How each kind of fault is made to happen to a running search.

An injection is a function of the scene, the fault and what an undisturbed search is like. It starts the search,
disturbs it, undoes what the fault did to the machine, and returns what happened.
"""

import contextlib
import os
import random
import resource
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.campaign.faults import SIGNALS, Fault
from benchmarks.campaign.scene import Scene, Search, Usual

FOUND_WITHIN_S = 3.0
"""How long a victim may take to appear."""
DISK_BYTES, COMPILERS_DISK_BYTES = 24 << 20, 512 << 20
"""The second for temporary files of compilers."""
TOOLS = ("g++", "gcc", "c++", "cc", "as", "ld", "openssl")
"""What Inductor runs, found by the path."""
CLOCK, DELAY, STUCK, READ_ONLY, USES, FORKS = range(6)
"""Places of the values in the file that the preloaded library reads."""
DAMAGED = ("study.db", "study.db-wal")


@dataclass(frozen=True, slots=True)
class Injected:
    """What a fault did.

    Attributes:
        search: the search that was disturbed.
        exit_code: how it ended; None if it had to be killed.
        way: how the fault was injected; empty if it could not be.
        refused: a message that the next search must end with, until ``repair`` was called; empty if it must succeed.
        repair: does what that message says.
    """

    search: Search
    exit_code: int | None
    way: str
    refused: str = ""
    repair: Callable[[], None] = lambda: None


Injection = Callable[[Scene, Fault, Usual], Injected]


def inject(scene: Scene, fault: Fault, usual: Usual) -> Injected:
    """Run the search of a scene with a fault; the machine is sound again afterwards."""
    with contextlib.ExitStack() as undo:
        if fault.kind.endswith("disk full"):
            undo.enter_context(_small_disk(scene, fault.kind))
        scene.prepare()
        return (_signalled if fault.kind in SIGNALS else _INJECTIONS[fault.kind])(scene, fault, usual)


def limit_s(usual: Usual) -> float:
    """Return how long a disturbed search may take; the machine may be busy."""
    return 90.0 + 4 * usual.seconds


def _signalled(scene: Scene, fault: Fault, usual: Usual) -> Injected:
    drawn, number = fault.drawn(), signal.Signals[fault.kind]
    search = scene.start("disturbed")
    search.reach(fault.moment, usual)
    pid = _victim(search, fault.whom, drawn)
    way = fault.kind if pid and _signal(pid, number) else ""
    if way and number is signal.SIGSTOP:
        search.sleep_until(time.monotonic() - search.began_s + drawn.uniform(0.1, 2.0))
        _signal(pid, drawn.choice((signal.SIGCONT, signal.SIGCONT, signal.SIGKILL)))
    return Injected(search, search.end(limit_s(usual)), way)


def _victim(search: Search, role: str, drawn: random.Random) -> int:
    """Return a process of that role, as soon as there is one; 0 if none appears."""
    until_s = time.monotonic() + FOUND_WITHIN_S
    while not (pids := search.of(role)) and search.process.poll() is None and time.monotonic() < until_s:
        time.sleep(0.02)
    return drawn.choice(pids) if pids else 0


def _signal(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _disk(scene: Scene, kind: str) -> Path:
    return scene.work if kind == "disk full" else scene.tmp


@contextlib.contextmanager
def _small_disk(scene: Scene, kind: str) -> Iterator[None]:
    """Mount a small disk where the search runs or has its temporary files, if that is allowed; its content is kept."""
    folder = _disk(scene, kind)
    size = COMPILERS_DISK_BYTES if folder == scene.tmp and scene.subject == "inductor" else DISK_BYTES
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "campaign", str(folder)]
    if os.geteuid() or subprocess.run(command, check=False, capture_output=True).returncode:
        yield
        return
    try:
        yield
        kept = scene.folder / "kept"
        shutil.copytree(folder, kept, symlinks=True)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
    shutil.copytree(kept, folder, dirs_exist_ok=True, symlinks=True)
    shutil.rmtree(kept)


def _full(scene: Scene, fault: Fault, usual: Usual) -> Injected:
    """Fill the disk, but for some bytes; without a disk of its own, limit the size of files instead."""
    drawn, folder = fault.drawn(), _disk(scene, fault.kind)
    ballast = folder / "ballast"
    search = scene.start("disturbed")
    search.reach(fault.moment, usual)
    left = drawn.choice((0, 0, 4096, 65536))
    if not os.path.ismount(folder):
        way = "RLIMIT_FSIZE" if _limit(search, resource.RLIMIT_FSIZE, drawn.randrange(1 << 14)) else ""
        return Injected(search, search.end(limit_s(usual)), way)
    try:
        with ballast.open("wb", buffering=0) as file:
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(65536))
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(512))
            file.truncate(max(0, file.tell() - left))
        way = "tmpfs" if search.process.poll() is None else ""
        return Injected(search, search.end(limit_s(usual)), way)
    finally:
        ballast.unlink()


def _limit(search: Search, what: int, most: int) -> bool:
    done = False
    for pid in [*search.of("search"), *search.of("keeper"), *search.of("worker")]:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, what, (most, most))
            done = True
    return done


def _limited(what: int, least: int, most: int) -> Injection:
    """Return an injection that lowers a limit of the search's processes."""

    def injection(scene: Scene, fault: Fault, usual: Usual) -> Injected:
        search = scene.start("disturbed")
        search.reach(fault.moment, usual)
        way = "prlimit" if _limit(search, what, fault.drawn().randint(least, most)) else ""
        return Injected(search, search.end(limit_s(usual)), way)

    return injection


def _controlled(place: int, least: float, most: float, *, lasts_s: float | None = None) -> Injection:
    """Return an injection that has the preloaded library do something, for some seconds or until the search ends."""

    def injection(scene: Scene, fault: Fault, usual: Usual) -> Injected:
        drawn = fault.drawn()
        search = scene.start("disturbed")
        is_running = search.reach(fault.moment, usual)
        has_shim = "LD_PRELOAD" in _environment_of(search.process.pid)
        _control(scene, place, drawn.uniform(least, most))
        if lasts_s is not None:
            search.sleep_until(time.monotonic() - search.began_s + drawn.uniform(0.2, lasts_s))
            if drawn.random() < 0.2:
                search.process.kill()
            _control(scene, place, 0.0)
        code = search.end(limit_s(usual))
        _control(scene, place, 0.0)
        was_used = place == CLOCK or _control(scene, USES) > 0
        return Injected(search, code, "preloaded library" if is_running and has_shim and was_used else "")

    return injection


def _control(scene: Scene, place: int, value: float | None = None) -> float:
    """Return a value that the preloaded library reads, after setting it."""
    with scene.control.open("r+b") as file:
        if value is not None:
            file.seek(8 * place)
            file.write(struct.pack("d", value))
        file.seek(8 * place)
        found: float = struct.unpack("d", file.read(8))[0]
    return found


def _environment_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/environ").read_text(errors="replace")
    except OSError:
        return ""


def _locked(scene: Scene, fault: Fault, usual: Usual) -> Injected:
    """Lock the database for some seconds, as another program may do."""
    drawn = fault.drawn()
    search = scene.start("disturbed")
    search.reach(fault.moment, usual)
    way = ""
    if scene.database.exists() and search.process.poll() is None:
        with contextlib.closing(sqlite3.connect(scene.database, timeout=5, isolation_level=None)) as connection:
            try:
                connection.execute("BEGIN EXCLUSIVE")
                way = "BEGIN EXCLUSIVE"
                lasts_s = drawn.choice((0.5, 1.0, 2.0, 4.0, 14.0))
                search.sleep_until(time.monotonic() - search.began_s + lasts_s)
                connection.execute("ROLLBACK")
            except sqlite3.Error:
                way = ""
    return Injected(search, search.end(limit_s(usual)), way)


def _damaged(scene: Scene, fault: Fault, usual: Usual) -> Injected:
    """Damage a file of the database, in use or after the search was killed."""
    drawn = fault.drawn()
    search = scene.start("disturbed")
    search.reach(fault.moment, usual)
    if drawn.random() < 0.7:
        search.process.kill()
        search.process.wait()
    present = [file for name in DAMAGED if (file := scene.study / name).exists() and file.stat().st_size]
    way = ""
    if present:
        file = drawn.choice(present)
        way = f"{file.name}, {'in use' if search.process.poll() is None else 'after SIGKILL'}"
        _damage(file, fault.kind.removeprefix("database "), drawn)
    return Injected(search, search.end(limit_s(usual)), way)


def _damage(file: Path, how: str, drawn: random.Random) -> None:
    size = file.stat().st_size
    if how == "deleted":
        file.unlink()
    elif how == "truncated":
        os.truncate(file, drawn.choice((0, drawn.randrange(size), size // 2 // 4096 * 4096)))
    else:
        with file.open("r+b") as opened:
            opened.seek(drawn.choice((0, drawn.randrange(size))))
            length = drawn.choice((64, 512, 4096, 3 * 4096))
            opened.write(drawn.randbytes(length) if drawn.random() < 0.5 else bytes(length))


def _older(scene: Scene, fault: Fault, usual: Usual) -> Injected:
    """Give the tables the version of an older Optuna, after the search was killed."""
    search = scene.start("disturbed")
    search.reach(fault.moment, usual)
    search.process.kill()
    search.process.wait()
    killed = -signal.SIGKILL
    try:
        with contextlib.closing(sqlite3.connect(f"file:{scene.database}?mode=rw", uri=True)) as connection, connection:
            connection.execute("UPDATE alembic_version SET version_num = 'v3.0.0.d' WHERE version_num = 'v3.2.0.a'")
            has_changed = connection.total_changes > 0
            connection.execute("DROP INDEX ix_trials_study_id")  # all that the newer version adds
    except sqlite3.Error:
        return Injected(search, killed, "")

    def upgrade() -> None:
        optuna, url = str(Path(sys.executable).parent / "optuna"), f"sqlite:///{scene.database}"
        subprocess.run([optuna, "storage", "upgrade", "--storage", url], check=True, capture_output=True)

    return Injected(search, killed, "tables of Optuna 3.1" if has_changed else "", "optuna storage upgrade", upgrade)


def _cache(scene: Scene, fault: Fault, usual: Usual) -> Injected:
    """Delete, overwrite or exchange files of compiled code while they are in use."""
    drawn = fault.drawn()
    search = scene.start("disturbed")
    search.reach(fault.moment, usual)
    files = [path for path in sorted(scene.cache.rglob("*")) if path.is_file()]
    is_running = search.process.poll() is None
    if fault.kind == "cache deleted":
        shutil.rmtree(scene.cache, ignore_errors=True)
    for path in drawn.sample(files, len(files) // 3):
        with contextlib.suppress(OSError):
            if fault.kind == "garbage in the cache":
                path.write_bytes(drawn.randbytes(drawn.randrange(1, 4096)))
            elif fault.kind == "cache poisoned":  # valid files of the same kind, which belong elsewhere
                others = [other for other in files if other.suffix == path.suffix and other != path]
                path.write_bytes(drawn.choice(others or [path]).read_bytes())
    return Injected(search, search.end(limit_s(usual)), fault.kind if files and is_running else "")


def _without_compiler(scene: Scene, fault: Fault, usual: Usual) -> Injected:
    """Take the compilers out of the path of a search that has no compiled code yet."""
    shutil.rmtree(scene.cache, ignore_errors=True)
    tools = scene.folder / "tools"
    tools.mkdir()
    for name in TOOLS:
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    search = scene.start("disturbed", PATH=str(tools))
    is_running = search.reach(fault.moment, usual)
    shutil.rmtree(tools)
    return Injected(search, search.end(limit_s(usual)), "PATH" if is_running else "")


def _two(scene: Scene, fault: Fault, usual: Usual) -> Injected:
    """Start the same search a second time."""
    search = scene.start("disturbed")
    is_running = search.reach(fault.moment, usual)
    other = scene.start("second")
    code, other_code = search.end(limit_s(usual)), other.end(limit_s(usual))
    is_sound = other_code in (0, 2) and code in (0, 2)
    return Injected(search, code if is_sound else None, "a second process" if is_running else "")


def _model(scene: Scene, fault: Fault, usual: Usual) -> Injected:
    """Have the model's process, or a rank of the program, misbehave."""
    drawn, what = fault.drawn(), fault.kind.removeprefix("bit in ") if fault.subject == "ranks" else fault.kind
    when = f"{drawn.randrange(1, 400)}" if fault.kind.startswith("bit") else f"{fault.moment * usual.seconds:.3f}"
    variable = what if fault.subject == "ranks" else f"{what}:{when}"
    search = scene.start("disturbed", CAMPAIGN_FAULT=variable)
    return Injected(search, search.end(limit_s(usual)), "environment of the model")


def _loaded(scene: Scene, fault: Fault, usual: Usual) -> Injected:
    """Keep every core busy from that moment on, until the search has ended."""
    search = scene.start("disturbed")
    search.reach(fault.moment, usual)
    way = "" if search.process.poll() is not None else "processes that never wait"
    with contextlib.ExitStack() as stack:
        for _ in range((os.cpu_count() or 1) if way else 0):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(process.kill)
        return Injected(search, search.end(limit_s(usual)), way)


_INJECTIONS: Mapping[str, Injection] = {
    "disk full": _full,
    "temporary disk full": _full,
    "no compiler": _without_compiler,
    "disk read-only": _controlled(READ_ONLY, 1, 1),
    "disk slow": _controlled(DELAY, 0.002, 0.02),
    "storage stalls": _controlled(STUCK, 1, 1, lasts_s=4.0),
    "database locked": _locked,
    "database truncated": _damaged,
    "database overwritten": _damaged,
    "database deleted": _damaged,
    "older schema": _older,
    "few file descriptors": _limited(resource.RLIMIT_NOFILE, 3, 40),
    "little memory": _limited(resource.RLIMIT_AS, 100 << 20, 3 << 30),
    "few processes": _controlled(FORKS, 1, 1),
    "clock set back": _controlled(CLOCK, -1e7, -60),
    "clock set forward": _controlled(CLOCK, 60, 1e7),
    "garbage in the cache": _cache,
    "cache deleted": _cache,
    "cache poisoned": _cache,
    "two searches": _two,
    "hang": _model,
    "segfault": _model,
    "bit in outputs": _model,
    "bit in state": _model,
    "child stays": _model,
    "later load": _loaded,
}
NEEDS_SHIM = frozenset(
    {"disk read-only", "disk slow", "storage stalls", "few processes", "clock set back", "clock set forward"}
)

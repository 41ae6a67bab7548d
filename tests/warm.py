"""Processes that start warm: forked from one that has imported torch and sktune, which costs each process seconds.

``sitting`` keeps that one. ``delegate`` hands a process over to it: its arguments, environment, folder and open files.
The process itself stays as a stand-in: it passes signals on and ends as the forked one does, which is killed when the
stand-in is.
"""

import atexit
import ctypes
import fcntl
import importlib
import json
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ADDRESS = "SKTUNE_TESTS_WARM"
MODULES = ("tests.quick_server", "tests.command", "tests.interpreter", "tests.engines.sleeping_command")
MODELS = ("transformers.models.llama.modeling_llama", "transformers.models.deepseek_v3.modeling_deepseek_v3")
"""Those that most tests search."""
MAX_FILES = 16
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def sitting(modules: Sequence[str] = MODULES, **variables: str) -> Iterator[None]:
    """Keep a warm process from the first time that it is needed; ``delegate`` finds it by an environment variable.

    Args:
        modules: those that it imports, which ``delegate`` may name.
        variables: added to its environment when it starts.
    """
    with tempfile.TemporaryDirectory(prefix="warm-") as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/socket")
        listener.listen(64)
        ends_in, ends_out = os.pipe()
        thread = threading.Thread(target=_start_when_needed, args=(listener, ends_in, modules, variables))
        thread.start()
        outer, os.environ[ADDRESS] = os.environ.get(ADDRESS), f"{folder}/socket"
        try:
            yield
        finally:
            del os.environ[ADDRESS]
            if outer:
                os.environ[ADDRESS] = outer
            os.close(ends_out)
            thread.join()
            os.close(ends_in)


def _start_when_needed(
    listener: socket.socket, ends: int, modules: Sequence[str], variables: Mapping[str, str]
) -> None:
    if ends in select.select([listener.fileno(), ends], [], [])[0]:
        return
    from sktune.backends import backend_info

    file = listener.fileno()
    command = [sys.executable, "-m", "tests.warm", "serve", str(file), *modules]
    allocator = backend_info("inductor").worker_environment("cpu")  # read only when a process starts
    environment = {**os.environ, **allocator, **variables}
    with subprocess.Popen(command, pass_fds=[file], stdin=subprocess.PIPE, env=environment) as process:
        select.select([ends], [], [])
        process.kill()


def delegate(module: str, inherited: Sequence[int] = (), *, lingers: bool = False) -> None:
    """Run ``module.main()`` in a warm process and end as it does; return if there is none.

    Args:
        module: one that the warm process imports.
        inherited: open files that it gets besides standard input, output and errors.
        lingers: whether its descendants may go on when it has ended; otherwise they are killed then.
    """
    if not (path := os.environ.get(ADDRESS)):
        return
    files = [0, 1, 2, *inherited]
    request = {
        "module": module, "argv": sys.argv, "folder": str(Path.cwd()), "files": files, "environment": dict(os.environ),
        "lingers": lingers, "pid": os.getpid(), "path": None if sys.flags.no_site else sys.path,
    }  # fmt: skip
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        text = json.dumps(request).encode()
        socket.send_fds(connection, [b"%10d" % len(text)], files)
        connection.sendall(text)
        for file in files:
            os.close(file)  # a pipe must close when the forked process ends
        for number in PASSED_ON:
            signal.signal(number, lambda number, _: connection.sendall(bytes([number])))
        status = connection.recv(16)
    code = os.waitstatus_to_exitcode(int(status)) if status else -signal.SIGKILL
    if code < 0:
        with suppress(OSError, ValueError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def forked(stand_in: int) -> int:
    """Return the process that runs for a stand-in, or its own number if it is none (yet)."""
    try:
        return int(_link({"pid": stand_in, "environment": os.environ}).readlink().name)
    except OSError:
        return stand_in


def _link(request: Mapping[str, Any]) -> Path:
    return Path(request["environment"][ADDRESS]).with_name(str(request["pid"]))


def _serve(listener: socket.socket) -> None:
    """Fork a process for each connection, which attends to it, until the tests end and close standard input."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    while listener in select.select([listener, sys.stdin], [], [])[0]:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                _attend(connection)
            finally:
                os._exit(1)
        connection.close()


def _attend(connection: socket.socket) -> None:
    """Fork what the stand-in asks for; kill what is left of it when either ends."""
    from sktune.worker import process_tree

    length, files, *_ = socket.recv_fds(connection, 10, MAX_FILES)
    request = json.loads(connection.recv(int(length), socket.MSG_WAITALL))
    ctypes.CDLL(None).prctl(process_tree.PR_SET_CHILD_SUBREAPER, int(not request["lingers"]))
    process = os.fork()
    if process == 0:
        connection.close()
        _become(request, files)
    for file in files:
        os.close(file)
    _link(request).symlink_to(str(process))
    ends = os.pidfd_open(process)
    status = None
    while status is None:
        if ends in select.select([ends, connection.fileno()], [], [])[0]:
            _, status = os.waitpid(process, 0)
        elif received := connection.recv(1):
            os.kill(process, received[0])
        else:
            break
    _link(request).unlink()
    if status is None:
        os.kill(process, signal.SIGKILL)
    if not request["lingers"]:
        process_tree._kill_descendants()
    if status is not None:
        connection.sendall(str(status).encode())


def _become(request: dict[str, Any], files: Sequence[int]) -> None:
    """Run the module's ``main`` with everything that the stand-in had."""
    os.setsid()
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 500) for file in files]
    for file in files:
        os.close(file)
    for file, number in zip(moved, request["files"], strict=True):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # the environment names it
    sys.argv[:], sys.path[:] = request["argv"], request["path"] or sys.path
    importlib.invalidate_caches()
    code = 1
    try:
        importlib.import_module(request["module"]).main()
        code = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        else:
            code = int(end.code or 0)
    except BaseException:  # noqa: BLE001 - as an interpreter does
        sys.excepthook(*sys.exc_info())
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _warm_up(modules: Sequence[str]) -> None:
    import gc

    gc.disable()
    from sktune.worker import server

    for module in modules:
        importlib.import_module(module)
    for backend in ("sim", "inductor"):
        server.import_early(backend)
    for module in MODELS:
        importlib.import_module(module)
    if "sktune.backends.inductor.backend" in sys.modules:
        from torch._inductor import codecache, cpu_vec_isa

        cpu_vec_isa.valid_vec_isa_list()  # runs a process for each instruction set
        codecache.torch_key()  # reads all of torch's files
    gc.freeze()


def python_in(folder: Path) -> Path:
    """Write a ``python3`` into ``folder`` that starts warm; see ``tests.interpreter``."""
    script = folder / "python3"
    script.parent.mkdir(exist_ok=True)
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -I -S {shlex.quote(__file__)} python "$@"\n')
    script.chmod(0o755)
    return script


def main() -> None:
    """Serve, or be a ``python3``."""
    if sys.argv[1] == "serve":
        _warm_up(sys.argv[3:])
        _serve(socket.socket(fileno=int(sys.argv[2])))
    if sys.argv[2] in ("-c", "-m") or not sys.argv[2].startswith("-"):
        delegate("tests.interpreter")
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])


if __name__ == "__main__":
    main()

"""Make an environment in which the true TorchAir front end runs on a machine without CANN.

    python3 tests/torchair/make_env.py .venv-npu

torch, torch_npu and sktune come from the package registry and this checkout. torch_npu links against libraries of
CANN: stubs that export what is missing are generated from the wheel's own undefined symbols, and preloaded by a
``.pth`` file. A stub returns 0 and does nothing else, so whatever needs a device stays impossible.
"""

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

TORCH, TORCH_NPU = "torch==2.13.0", "torch_npu==2.13.0"
PYTEST = ("pytest>=8.2", "pytest-xdist>=3.6", "hypothesis>=6.100")
REPOSITORY = Path(__file__).resolve().parents[2]

PRELOAD = '''"""Loads the stubs of CANN's libraries, so that torch_npu finds their names taken. Test scaffolding."""

import ctypes
from pathlib import Path

for _path in sorted(Path(__file__).parent.glob("*.so")):
    ctypes.CDLL(str(_path), ctypes.RTLD_GLOBAL)
'''


def main() -> None:
    """Make the environment in the folder of the first argument, or complete the one that is there."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".venv-npu")
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    run(
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-compile",
        TORCH,
        TORCH_NPU,
        *PYTEST,
        "-e",
        f"{REPOSITORY}[npu]",
    )
    site = Path(output(str(python), "-c", "import sysconfig; print(sysconfig.get_path('platlib'))").strip())
    count = make_stubs(site)
    print(f"{folder}: {TORCH}, {TORCH_NPU}, {count} symbols of CANN stubbed")


def make_stubs(site: Path) -> int:
    """Write the stub libraries into ``site``; return how many symbols they export."""
    wheel = sorted(site.glob("torch_npu/**/*.so"))
    shipped = sorted(site.glob("torch*/**/*.so*"))
    system = {name: path for name in set().union(*map(needed, wheel)) if (path := system_library(name))}
    missing = sorted(set().union(*map(needed, wheel)) - set(system) - {path.name for path in shipped})
    defined = set().union(*(symbols(path, "--defined-only") for path in [*shipped, *system.values()]))
    wanted = set().union(*(symbols(path, "--undefined-only") for path in wheel)) - defined
    names = sorted(name for name in wanted if not name.startswith(("Py", "_Py")))

    folder = site / "cann_stubs"
    folder.mkdir(exist_ok=True)
    source = folder / "stubs.c"
    source.write_text("".join(f"long {name}(void) {{ return 0; }}\n" for name in names))
    # Which library a symbol comes from makes no difference to the loader; the first one has them all.
    for index, library in enumerate(missing):
        code = [str(source)] if index == 0 else ["-x", "c", "/dev/null"]
        options = ["-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{library}", "-o", str(folder / library)]
        run("gcc", *options, *code)
    (folder / "__init__.py").write_text(PRELOAD)
    (site / "cann_stubs.pth").write_text("import cann_stubs\n")
    return len(names)


def needed(library: Path) -> set[str]:
    """Return the names of the libraries that ``library`` is linked against."""
    lines = output("readelf", "--dynamic", str(library)).splitlines()
    return {line.partition("[")[2].rstrip("]") for line in lines if "(NEEDED)" in line}


def symbols(library: Path, which: str) -> set[str]:
    """Return the dynamic symbols of ``library``; weak ones need no definition."""
    rows = (line.split() for line in output("nm", "--dynamic", which, str(library)).splitlines())
    return {row[-1].partition("@")[0] for row in rows if row and row[-2] not in ("w", "v")}


def system_library(name: str) -> Path | None:
    """Return where the system has the library ``name``."""
    folders = (Path("/lib64"), Path("/lib") / sysconfig.get_config_var("MULTIARCH"), Path("/usr/lib"))
    return next((folder / name for folder in folders if (folder / name).exists()), None)


def output(*command: str) -> str:
    """Return what ``command`` prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def run(*command: str) -> None:
    """Run ``command``; an error ends the program."""
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()

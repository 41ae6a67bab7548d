"""Make an environment in which the true TorchAir front end runs on a machine without CANN.

    python3 benchmarks/npu_env.py --torch-npu 2.8.0.post4 FOLDER

torch, torch_npu and what sktune needs come from the package registry, sktune from this checkout; to test another one,
put it on ``PYTHONPATH``. torch_npu links against libraries of CANN: stubs that export what is missing are generated
from the wheel's own undefined symbols, and preloaded by a ``.pth`` file. A stub returns 0 and does nothing else, so
whatever needs a device stays impossible.
"""

import argparse
import re
import subprocess
import sysconfig
import tomllib
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

RELEASES: Mapping[str, Sequence[str]] = {
    # What cann-recipes-infer pins (August 2026), and vLLM-Ascend (autumn 2026).
    "2.8.0.post4": ("torch==2.8.0", "transformers==5.0.0", "numpy==1.26.4", "protobuf==6.31.0"),
    "2.10.0.post4": ("torch==2.10.0", "transformers==5.14.1"),
    "2.13.0": ("torch==2.13.0",),
    "2.14.0": ("torch==2.14.0",),
}
"""Each torch_npu with the versions that its users have beside it; what is not given is the newest."""
NEWEST = "2.14.0"
PYTEST = ("pytest>=8.2", "pytest-xdist>=3.8", "hypothesis>=6.100")
REPOSITORY = Path(__file__).resolve().parents[1]

PRELOAD = '''"""Loads the stubs of CANN's libraries, so that torch_npu finds their names taken. Test scaffolding."""

import ctypes
from pathlib import Path

for _path in sorted(Path(__file__).parent.glob("*.so")):
    ctypes.CDLL(str(_path), ctypes.RTLD_GLOBAL)
'''
KEYS = """#include <string>
#include <unordered_set>

namespace c10::CachingAllocator {
struct AcceleratorAllocatorConfig {
  static std::unordered_set<std::string>& getMutableKeys();
};
std::unordered_set<std::string>& AcceleratorAllocatorConfig::getMutableKeys() {
  return *new std::unordered_set<std::string>;
}
}
"""
"""A build of torch for CUDA, which is what the registry has, and torch_npu 2.14 both register settings of an allocator
by the same names, which ends the process. With this, each registration finds none; nothing is allocated on a device."""


def main() -> None:
    """Make the environment, or complete the one that is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch-npu", choices=RELEASES, default=NEWEST)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    folder, python = arguments.folder, arguments.folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    torch_npu, pinned = f"torch_npu=={arguments.torch_npu}", RELEASES[arguments.torch_npu]
    install = (str(python), "-m", "pip", "install", "--quiet", "--no-compile")
    run(*install, *pinned, *PYTEST, *dependencies(without={"torch_npu", *map(name_of, pinned)}))
    # Older wheels of torch_npu ask for torch's CPU build by a version, 2.8.0+cpu, that the package registry lacks.
    run(*install, "--no-deps", torch_npu, "-e", str(REPOSITORY))
    site = Path(output(str(python), "-c", "import sysconfig; print(sysconfig.get_path('platlib'))").strip())
    count = make_stubs(site)
    print(f"{folder}: {', '.join([torch_npu, *pinned])}; {count} symbols of CANN stubbed")


def dependencies(without: set[str]) -> list[str]:
    """Return what sktune needs on an NPU, but for the packages ``without``."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    needed = (*project["dependencies"], *project["optional-dependencies"]["npu"])
    return [each for each in needed if name_of(each) not in without]


def name_of(requirement: str) -> str:
    """Return the name of the package that a requirement is about."""
    return re.split(r"[\[<>=!~; ]", requirement)[0]


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
    (folder / "keys.cpp").write_text(KEYS)
    run("g++", "-shared", "-fPIC", "-std=c++17", "-o", str(folder / "keys.so"), str(folder / "keys.cpp"))
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

"""Make an environment at one end of the versions that pyproject.toml allows, and run tests there.

    python -m tests.ends lowest FOLDER [pytest's arguments]
    python -m tests.ends newest FOLDER [pytest's arguments]

``lowest`` has the lowest allowed version of each package that sktune or its tests ask for, and the newest of what those
ask for in turn; ``newest`` has the newest of all. A folder that is there is completed: a copy of an environment that
already has torch saves a download of 3 GB.
"""

import argparse
import subprocess
import tomllib
import venv
from pathlib import Path

RESOLUTIONS = {"lowest": "lowest-direct", "newest": "highest"}
REPOSITORY = Path(__file__).resolve().parents[1]


def main() -> None:
    """Make or complete the environment, then end as pytest does there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("end", choices=RESOLUTIONS)
    parser.add_argument("folder", type=Path)
    arguments, tests = parser.parse_known_args()
    folder: Path = arguments.folder.resolve()
    python = str(folder / "bin" / "python")
    if not Path(python).exists():
        venv.create(folder, with_pip=True)
    install(python, folder, RESOLUTIONS[arguments.end])
    raise SystemExit(subprocess.run([python, "-m", "pytest", *tests], cwd=REPOSITORY).returncode)


def install(python: str, folder: Path, resolution: str) -> None:
    """Give the environment exactly what the resolution says, and sktune from this checkout."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    bounds, chosen = folder / "bounds.txt", folder / "chosen.txt"
    bounds.write_text("\n".join(project["dependencies"]))
    uv = (python, "-m", "uv", "--quiet", "pip")
    run(python, "-m", "pip", "install", "--quiet", "uv")
    # The tests pin what their recorded files come from; --override leaves sktune's own bounds.
    compiled = ("--extra", "test", "--override", str(bounds), "--resolution", resolution, "--no-annotate")
    run(*uv, "compile", "pyproject.toml", "--python", python, *compiled, "--output-file", str(chosen))
    run(*uv, "sync", "--python", python, str(chosen))
    run(*uv, "install", "--python", python, "--no-deps", "--editable", ".")


def run(*command: str) -> None:
    """Run a command in the repository; an error ends the program."""
    subprocess.run(command, check=True, cwd=REPOSITORY)


if __name__ == "__main__":
    main()

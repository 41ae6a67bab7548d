"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from sktune.core import language as languages
from sktune.core.errors import BadInputError

MODEL_HELP = "A preset (deepseek-v3, llama, qwen3, qwen3-moe), a folder with config.json, or path/to/file.py:function."
Model = Annotated[str, typer.Option(help=MODEL_HELP)]
AnyModel = Annotated[str, typer.Option(help=f"{MODEL_HELP} Or give --recipe.")]
Recipe = Annotated[
    Path | None,
    typer.Option(help="A recipe.yaml: a program to start for each plan; see docs/reference/recipe.md."),
]
Models = Annotated[
    Path | None,
    typer.Option(help="A YAML file with several searches, which share the workers; see docs/how-to/many-dies.md."),
]
Runs = Annotated[Path, typer.Option(help="Folder that holds the studies.")]
Storage = Annotated[str | None, typer.Option(help="URL of an Optuna storage; sqlite in the study's folder by default.")]
Join = Annotated[bool, typer.Option("--join", help="Work on a study of --storage that another search is running.")]
TakeOver = Annotated[
    bool, typer.Option("--take-over", help="Assume that a search on another host that holds the study has ended.")
]
Standby = Annotated[
    bool, typer.Option("--standby", help="Wait until no other search runs the study, and go on with it then.")
]
Workers = Annotated[
    int | None,
    typer.Option(help="Trials to run at the same time, each on a die of its own; by default 1, on Ray all dies."),
]
Engine = Annotated[str, typer.Option(help="local for workers on this host, or ray for those of a Ray cluster.")]
Address = Annotated[str | None, typer.Option(help="Of the Ray cluster; by default the one on this host.")]
UntilConverged = Annotated[
    bool, typer.Option("--until-converged", help="Stop when no plan is expected to save another 0.5% of the step.")
]
"""The former name of ``--until-converged``."""
Rehearse = Annotated[
    bool,
    typer.Option(
        "--rehearse", help="Start the program of --recipe once, and say what a search would do and how long it takes."
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print JSON lines on standard output, and text for people on standard error.")
]
Language = Annotated[str, typer.Option(help="Language of the page: en or zh.")]
Scale = Annotated[
    str | None, typer.Option(help="tiny, small or full; by default tiny on CPU and sim, small on CUDA and NPU.")
]
Space = Annotated[Path | None, typer.Option(help="A YAML file with your own search space.")]
TryInexact = Annotated[
    bool,
    typer.Option(
        "--try-inexact", help="Also search option values that may change bits; see docs/explanation/exactness.md."
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option(
        help="A checkpoint's folder (safetensors), or random; by default the model folder's own, else random."
    ),
]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Run the code in the model's folder (auto_map in its config.json); read it first."),
]
Dtype = Annotated[str | None, typer.Option(help="bfloat16 (default), float16 or float32.")]
Backend = Annotated[
    str | None,
    typer.Option(
        help="inductor, npu, npugraph-ex, sim or sim-npugraph-ex; by default npu on the device npu, else inductor."
    ),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or npu; by default the backend's first.")]
Batch = Annotated[int | None, typer.Option(help="Sequences decoded together.")]
Context = Annotated[int | None, typer.Option(help="Tokens in the KV cache before the first step.")]
Constants = Annotated[Path | None, typer.Option(help="Constants of the simulated device, from `sktune calibrate`.")]
Profile = Annotated[
    Path | None,
    typer.Option(help="A profile of the baseline: it orders the starting points; sim uses its kernel times."),
]
Seed = Annotated[int, typer.Option(help="Seed of weights, inputs and proposals.")]
Trials = Annotated[
    int | None, typer.Option(help="Total number of trials of the study; by default 40, or no limit with --time-budget.")
]
VerifySteps = Annotated[
    int,
    typer.Option(
        help="Decode steps on which the winner is compared with the baseline, bit for bit. "
        "By default 256 suffice if it is exact by construction."
    ),
]
ProxyLayers = Annotated[
    int | None, typer.Option(help="Search a model with this many layers of each kind first, then try its best plans.")
]


def chosen_language(name: str) -> languages.Language:
    """Return the language of a page.

    Raises:
        BadInputError: there are no texts in it.
    """
    if name not in languages.LANGUAGES:
        raise BadInputError(f"--language: there is no {name!r}; choose {' or '.join(languages.LANGUAGES)}")
    return languages.LANGUAGES[languages.LANGUAGES.index(name)]

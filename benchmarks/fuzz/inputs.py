"""Real files for each command, and its arguments."""

import gzip
import json
import random
import shutil
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fuzz.mutations import VALUES, damage_path, mutated
from sktune.core.plan import Plan, Scope
from sktune.core.plan_file import read_plan_file, write_plan
from sktune.sim.constants import ATLAS_A3
from sktune.source import edits
from sktune.source.apply import source_change
from tests import profiles
from tests.builders import TESTS, sktune_command
from tests.projects import RANKS, TEMPLATE

TOY = "toy-computed"
"""The backend of tests/contract that judges plans in this process, so that accepted inputs are searched at once."""
SPACE = """\
version: 1
space:
  units: [linear, activation]
  layers_per_scope: [1, 2, all]
  options: {toy-computed: {cpu: {pause: [short, long]}}}
  starting_points:
    each: {layer.linear: new, layer.activation: join}
"""
MODEL = """\
import torch
from torch import nn
import sktune

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.activation = nn.Linear(4, 4), nn.SiLU()
    def forward(self, x):
        return self.activation(self.linear(x))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

def target():
    model = Model().eval().requires_grad_(False)
    return sktune.Target(model, model.forward, lambda seed, steps: [(torch.ones(1, 4),)] * steps, {}, "tiny")
"""
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 16, "intermediate_size": 16,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 32, "head_dim": 8,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": False, "rope_scaling": None, "torch_dtype": "bfloat16",
}  # fmt: skip
RECIPE = """\
version: 1
name: plain
command: [python3, program.py, --yaml, "{yaml_name}"]
directory: .
environment: {A: "1"}
yaml: {file: program.yaml, set: {scheduler_config.max_new_tokens: 160}}
ranks: 1
timeout_s: 5
backend: inductor
device: cpu
latency: {pattern: "step took ([0-9.]+) ms"}
space: space.yaml
wait_s: 0
"""
PROGRAM = """\
model_name: tiny
exe_mode: ge_graph
world_size: 16
model_config: {enable_superkernel: true, custom_params: {enable_superkernel: false}}
scheduler_config: {batch_size: 8, max_new_tokens: 500}
"""


@dataclass(frozen=True)
class Use:
    """One way to call a command: its arguments, and the files that are damaged, by their paths in the folder."""

    arguments: Sequence[str]
    files: Sequence[str]


TINY = ("--model", "own.py:target", "--backend", TOY)
FIRST = ("--goal", "first", "--time-budget", "60s")
SEARCH = ("search", "--trials", "1", "--verify-steps", "16")
USES: Mapping[str, Sequence[Use]] = {
    "inspect": (
        Use(("inspect", *TINY[:2], "--space", "space.yaml"), ("space.yaml",)),
        Use(("inspect", "--model", "llama"), ("llama/config.json",)),
    ),
    "search": (
        Use((*SEARCH, *TINY, "--space", "space.yaml"), ("space.yaml",)),
        Use((*SEARCH, *TINY, "--profile", "kernel_details.csv"), ("kernel_details.csv",)),
        Use((*SEARCH, *TINY, "--study", "done"), ("runs/done/study.db",)),
        Use((*SEARCH, "--recipe", "recipe.yaml"), ("recipe.yaml", "recipe.yaml", "program.yaml", "space.yaml")),
    ),
    "apply": (
        Use(("apply", "plan.yaml", "--to", "model"), ("plan.yaml", "plan.yaml", "SOURCE", "YAML")),
        Use(("apply", "plan.yaml", "--to", "model", "--write"), ("plan.yaml", "SOURCE", "YAML")),
        Use(("apply", "plan.yaml", "--to", "applied"), ("RECORD",)),
        Use(("apply", "--undo", "--to", "applied"), ("RECORD", "RECORD", "APPLIED")),
    ),
    "profile": (
        Use(("profile", "kernel_details.csv"), ("kernel_details.csv",)),
        Use(("profile", "op_summary.csv"), ("op_summary.csv",)),
        Use(("profile", "trace_view.json"), ("trace_view.json",)),
        Use(("profile", "gpu.json"), ("gpu.json",)),
        Use(("profile", "cpu.json"), ("cpu.json",)),
        Use(("profile", "trace.json.gz"), ("trace.json.gz",)),
        Use(("profile", "kernel_details.csv", "op_summary.csv"), ("op_summary.csv",)),
    ),
    "analyze": (
        Use(("analyze", *TINY, *FIRST, "--profile", "trace_view.json"), ("trace_view.json",)),
        Use(("analyze", *TINY, *FIRST, "--dir", "model"), ("YAML", "SOURCE")),
        Use(("analyze", "--dir", ".", "--yaml", "program.yaml", *FIRST), ("recipe.yaml", "program.yaml")),
        Use(("analyze", "--dir", "llama", "--backend", TOY, *FIRST), ("llama/config.json",)),
    ),
    "recipe init": (
        Use(("recipe", "init", "checkout/models/tiny_moe", "--out", "new.yaml"), ("CONFIG", "CONFIG", "infer.sh")),
        Use(("recipe", "init", ".", "--yaml", "program.yaml", "--command", "x program.yaml", "--out", "new.yaml"),
            ("program.yaml", "program.py")),
        Use(("recipe", "init", "started", "--out", "new.yaml"), ("started/program.py",)),
    ),
    "show": (Use(("show", "done"), ("runs/done/study.db",)), Use(("show", "done", "--why"), ("runs/done/study.db",))),
    "report": (Use(("report", "done"), ("runs/done/study.db",)),),
    "fusion": (
        Use(("fusion", "dump.txt", "--log", "fault.plog"), ("dump.txt", "fault.plog", "fault.plog")),
        Use(("fusion", "dump.pbtxt"), ("dump.pbtxt",)),
        Use(("fusion", "dump.txt", "--fused", "fused.txt"), ("fused.txt",)),
    ),
    "calibrate": (
        Use(("calibrate", "kernel_details.csv", "--constants", "constants.yaml", "--out", "new.yaml"),
            ("constants.yaml", "kernel_details.csv")),
    ),
}  # fmt: skip
"""By command. Names in capitals stand for files of the projects."""
NAMED = {
    "SOURCE": f"model/{TEMPLATE.source.relative_to(TEMPLATE.model)}",
    "APPLIED": f"applied/{TEMPLATE.source.relative_to(TEMPLATE.model)}",
    "RECORD": f"applied/{edits.RECORD}",
    "CONFIG": "checkout/models/tiny_moe/config/tiny_moe_2tp.yaml",
    "infer.sh": "checkout/executor/scripts/infer.sh",
}


def make_base(folder: Path) -> None:
    """Write the undamaged files of all commands."""
    folder.mkdir()
    scopes = tuple(Scope(f"model.layers.{n}.self_attn", f"model.layers.{n}.mlp") for n in range(TEMPLATE.layers))
    kernels = profiles.deepseek(steps=3, dense=1, moe=3)
    texts = {
        "own.py": MODEL,
        "space.yaml": SPACE,
        "recipe.yaml": RECIPE,
        "program.yaml": PROGRAM,
        "program.py": "import torch_npu\nif __name__ == '__main__':\n    pass\n",
        "started/program.py": "if __name__ == '__main__':\n    pass\n",
        "llama/config.json": json.dumps(CONFIG, indent=1),
        "plan.yaml": write_plan(Plan(scopes), {"speedup": 1.2, "verified": "all"}, "npu", TEMPLATE.layers),
        "kernel_details.csv": profiles.kernel_details(kernels),
        "op_summary.csv": profiles.op_summary(kernels),
        "trace_view.json": profiles.npu_trace(kernels),
        "gpu.json": profiles.gpu_trace(kernels),
        "cpu.json": json.dumps({"traceEvents": [
            {"ph": "X", "cat": "cpu_op", "name": f"aten::mm{n % 3}", "ts": n * 10.5, "dur": 9, "pid": 1, "tid": 1}
            for n in range(60)
        ]}),
        "constants.yaml": ATLAS_A3.read_text(),
        "fault.plog": (TESTS / "data" / "fault.plog").read_text(),
        "dump.txt": (TESTS / "data" / "torchair_dump.txt").read_text(),
        "dump.pbtxt": (TESTS / "data" / "torchair_dump.pbtxt").read_text(),
        "fused.txt": (TESTS / "data" / "ge_proto_AfterSkGraph.txt").read_text(),
    }  # fmt: skip
    for name, text in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    (folder / "trace.json.gz").write_bytes(gzip.compress(texts["trace_view.json"].encode()))
    for name in ("model", "applied"):
        shutil.copytree(TEMPLATE.root / TEMPLATE.model, folder / name)
    shutil.copytree(RANKS.root, folder / "checkout")
    source_change(read_plan_file(folder / "plan.yaml"), folder / "applied").write()
    made = sktune_command(*SEARCH[:1], "--trials", "3", *SEARCH[3:], *TINY, "--study", "done", folder=folder)
    assert made.returncode == 0, made.stderr


def damaged(rng: random.Random, command: str, folder: Path) -> Sequence[str]:
    """Damage one of a command's files in a copy of the base, and return the command's arguments."""
    use = rng.choice(USES[command])
    name = rng.choice(use.files)
    path = next(folder.glob("model/**/*.yaml")) if name == "YAML" else folder / NAMED.get(name, name)
    if rng.random() < 0.04:
        damage_path(rng, path)
    elif path.suffix == ".db" and rng.random() < 0.7:
        _damage_facts(rng, path)
    elif path.suffix == ".gz" and rng.random() < 0.7:
        path.write_bytes(gzip.compress(mutated(rng, gzip.decompress(path.read_bytes()))))
    else:
        path.write_bytes(mutated(rng, path.read_bytes()))
    return use.arguments


def _damage_facts(rng: random.Random, database: Path) -> None:
    """Damage a value that is stored in a database, as JSON or as a number."""
    with closing(sqlite3.connect(database)) as connection, suppress(sqlite3.Error):
        table, column = rng.choice((
            ("study_user_attributes", "value_json"), ("trial_user_attributes", "value_json"),
            ("trial_user_attributes", "value_json"), ("trial_params", "distribution_json"),
            ("trial_params", "param_value"), ("trial_values", "value"), ("trials", "state"), ("studies", "study_name"),
            ("trial_system_attributes", "value_json"), ("version_info", "schema_version"),
        ))  # fmt: skip
        rows = connection.execute(f"SELECT rowid, {column} FROM {table}").fetchall()
        row, value = rng.choice(rows or [(1, "")])
        new: object = rng.choice(VALUES)
        if isinstance(value, str):
            new = mutated(rng, value.encode()).decode("utf-8", "replace")
        elif isinstance(new, list | dict):
            new = str(new)
        with suppress(OverflowError, UnicodeError):
            connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (new, row))
        connection.commit()

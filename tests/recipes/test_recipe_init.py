"""`sktune recipe init` on checkouts like cann-recipes-infer: what it states is so, and the rest is refused."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from sktune.core.errors import BadInputError
from sktune.recipes.discover import draft_recipe
from sktune.recipes.program_checks import ProgramChecks
from sktune.recipes.recipe_draft import MIN_NEW_TOKENS
from sktune.targets.recipe import read_recipe
from tests.builders import TESTS, sktune_command

MODEL = Path("models/tiny_moe")
NAME = "tiny_moe_2tp.yaml"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copy of the checkout with two ranks."""
    return Path(shutil.copytree(TESTS / "projects" / "ranks", tmp_path / "ranks"))


def vary(root: Path, name: str = NAME, **values: Any) -> Path:
    """Write the model's YAML with other values, by the keys' last part, and return the model's folder."""
    file = root / MODEL / "config" / NAME
    data = yaml.safe_load(file.read_text())
    for key, value in values.items():
        parts = [part for part in data.values() if key in part] or [data["model_config"]]
        parts[0][key] = value
    file.unlink()
    (file.parent / name).parent.mkdir(exist_ok=True)
    (file.parent / name).write_text(yaml.safe_dump(data))
    return root / MODEL


def add_check(root: Path, check: str) -> None:
    """Add a function with checks to the model's sources."""
    lines = "\n".join(f"    {line}" for line in check.splitlines())
    (root / MODEL / "models" / "model_setting.py").write_text(f"def check_model_settings(infer_config):\n{lines}\n")


def refusal(folder: Path, *arguments: Any) -> str:
    """Return the only line with which a folder is refused."""
    with pytest.raises(BadInputError) as refused:
        draft_recipe(folder, *arguments)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def changes_of(folder: Path) -> dict[str, Any]:
    """Return what differs in the YAML's copy, by the keys' last part."""
    changes = draft_recipe(folder).values["yaml"].get("set", {})
    return {path.rpartition(".")[2]: value for path, value in changes.items()}


class TestModes:
    """The mode of the copy is one that the program accepts."""

    CHECK = (
        "mode = infer_config.model_config.exe_mode\n"
        "if mode not in ['eager', 'npugraph_ex']:\n"
        "    raise ValueError(mode)"
    )

    def test_a_mode_that_the_program_refuses(self, root: Path) -> None:
        """With the check and its place."""
        add_check(root, "if infer_config.model_config.exe_mode not in ['eager']:\n    raise ValueError('only eager')")
        line = refusal(vary(root, exe_mode="eager"))
        assert "exe_mode not in ['eager']" in line
        assert "models/tiny_moe/models/model_setting.py:2" in line

    @pytest.mark.parametrize(
        ("check", "why"),
        [
            (CHECK, "sources name no other"),
            (CHECK + "\nif mode == 'ge_graph':\n    raise ValueError(mode)", "checks refuse the other"),
        ],
    )
    def test_a_mode_that_the_sources_name(self, root: Path, check: str, why: str) -> None:
        """An eager YAML of a program for npugraph_ex is tuned in that mode, with its static kernels."""
        add_check(root, check)
        draft = draft_recipe(vary(root, exe_mode="eager"))
        assert changes_of(root / MODEL) == {"exe_mode": "npugraph_ex", "enable_static_kernel": True}
        assert any(why in line for line in draft.found)

    def test_a_mode_that_is_no_name(self, root: Path) -> None:
        """A list where the mode should be."""
        assert changes_of(vary(root, exe_mode=["ge_graph", "eager"])) == {"exe_mode": "ge_graph"}

    def test_static_kernels_are_off_where_only_npugraph_ex_has_them(self, root: Path) -> None:
        """As the program refuses them in every other mode."""
        add_check(root, "c = infer_config.model_config\nif c.enable_static_kernel and c.exe_mode == 'ge_graph':\n"
                        "    raise ValueError")  # fmt: skip
        changes = changes_of(vary(root, exe_mode="eager", enable_static_kernel=True))
        assert changes == {"exe_mode": "ge_graph", "enable_static_kernel": False}

    def test_static_kernels_that_are_not_named_are_off(self, root: Path) -> None:
        """So that nothing remains to be decided."""
        add_check(root, "c = infer_config.model_config\nif c.enable_static_kernel and c.exe_mode == 'ge_graph':\n"
                        "    raise ValueError")  # fmt: skip
        assert not any("accepts" in line for line in draft_recipe(vary(root, exe_mode="eager")).unknown)

    def test_a_mode_that_is_refused_on_every_platform_that_accepts_the_yaml(self, root: Path) -> None:
        """A quantization that only one platform has, and there not in this mode."""
        add_check(root, """quantization = None
params = infer_config.model_config.custom_params
loaded = find_config(infer_config)
if isinstance(loaded, dict):
    quantization = loaded['method']
if params.get('enable_online_mxfp8', False):
    quantization = 'mxfp8'
if _PLATFORM_VERSION != '950' and quantization in {'mxfp8'}:
    raise ValueError('not here')
if _PLATFORM_VERSION == '950' and quantization == 'mxfp8' and infer_config.model_config.exe_mode == 'ge_graph':
    raise ValueError('not in this mode')""")  # fmt: skip
        line = refusal(vary(root, exe_mode="eager", enable_online_mxfp8=True))
        assert "quantization == 'mxfp8'" in line

    def test_a_yaml_that_the_program_refuses_itself(self, root: Path) -> None:
        """By a check of the model's: nothing is tuned; by one that others share, it may not run: a note."""
        add_check(root, "c = infer_config.model_config  # exe_mode\nif c.enable_limit and not c.enable_streams:\n"
                        "    raise ValueError")  # fmt: skip
        folder = vary(root, enable_limit=True, enable_streams=False)
        assert "refuses the YAML as it is, as `c.enable_limit and (not c.enable_streams)`" in refusal(folder)
        (folder / "models" / "model_setting.py").rename(root / "executor" / "model_setting.py")
        assert any("accepts the YAML as it is" in line for line in draft_recipe(folder).unknown)

    def test_a_check_that_cannot_be_decided_is_a_note(self, root: Path) -> None:
        """With its condition."""
        add_check(root, "if weights.is_odd and infer_config.model_config.exe_mode == 'ge_graph':\n    raise ValueError")
        unknown = draft_recipe(vary(root, exe_mode="eager")).unknown
        assert any("weights.is_odd" in line and "model_setting.py:2" in line for line in unknown)

    @pytest.mark.parametrize("values", [{}, {"enable_static_kernel": False}])
    def test_npugraph_ex_is_tuned_in_its_own_mode(self, root: Path, values: dict[str, Any]) -> None:
        """With static kernels, which the baseline has, too; the program's checks of other modes do not matter."""
        add_check(root, self.CHECK)
        draft = draft_recipe(vary(root, exe_mode="npugraph_ex", **values))
        assert {path.rpartition(".")[2]: value for path, value in draft.values["yaml"]["set"].items()} == {
            "enable_static_kernel": True
        }
        assert "the baseline has them, too, so it is not your step" in " ".join(draft.found)
        assert draft.values["backend"] in ("npugraph-ex", "inductor")

    def test_a_program_with_static_kernels_runs_as_it_is(self, root: Path) -> None:
        """Nothing of its mode differs in the copy."""
        assert changes_of(vary(root, exe_mode="npugraph_ex", enable_static_kernel=True)) == {}

    def test_a_yaml_in_the_needed_mode_keeps_it(self, root: Path) -> None:
        """The program accepts it, and nothing of its mode differs in the copy."""
        add_check(root, self.CHECK.replace("npugraph_ex", "ge_graph"))
        assert "exe_mode" not in changes_of(root / MODEL)


@pytest.mark.parametrize(
    ("source", "before", "after", "refuses"),
    [
        ("if c.a == 1 or unknown():\n        raise E", {"a": 0}, {"a": 1}, True),
        ("if not c.a:\n        return\n    raise_later()\n    if c.b:\n        raise E", {"a": 0, "b": 1},
         {"a": 1, "b": 1}, True),
        ("if c.get('a') and c.get('missing', 0):\n        raise E", {"a": 0}, {"a": 1}, False),
        ("if config.get('missing', 1) and config.get('a'):\n        raise E", {"a": 0}, {"a": 1}, True),
        ("x = c.a\n    for x in range(3):\n        pass\n    if x:\n        raise E", {"a": 0}, {"a": 1}, False),
        ("if c.a < 'text':\n        raise E", {"a": 0}, {"a": 1}, False),
        ("if c.a:\n        pass\n    else:\n        raise E", {"a": 1}, {"a": 0}, True),
        ("with lock:\n        if c.a:\n            raise E", {"a": 0}, {"a": 1}, True),
    ],
)  # fmt: skip
def test_checks_are_decided_as_the_program_would(
    tmp_path: Path, source: str, before: dict[str, Any], after: dict[str, Any], refuses: bool
) -> None:
    """A certain refusal is one for all values that are not known; nothing is executed."""
    file = tmp_path / "m.py"
    file.write_text(f"def check(c, config):\n    {source}\n\n\na = 1\n")
    verdict = ProgramChecks([file], "a").verdict(before, after)
    assert bool(verdict.refusing) is refuses


class TestRuns:
    """A run has decode steps, on this host, and nothing that disturbs it."""

    def test_a_profiler_is_off(self, root: Path) -> None:
        """It would slow the steps down."""
        assert changes_of(vary(root, enable_profiler=True)) == {"enable_profiler": False}

    @pytest.mark.parametrize(("tokens", "expected"), [(8, MIN_NEW_TOKENS), (9, None), (160, None), (4096, 160)])
    def test_decode_steps_are_enough_to_verify(self, root: Path, tokens: int, expected: int | None) -> None:
        """Eight new tokens are seven decode steps."""
        assert changes_of(vary(root, max_new_tokens=tokens)).get("max_new_tokens") == expected

    def test_a_run_without_decode_steps(self, root: Path) -> None:
        """It ends after prefill."""
        assert "ends after prefill" in refusal(vary(root, max_new_tokens=1))

    def test_the_prefill_role(self, root: Path) -> None:
        """The decode role's YAML is beside it."""
        folder = vary(root, name="prefill.yaml")
        shutil.copy(folder / "config" / "prefill.yaml", folder / "config" / "decode.yaml")
        assert "prefill role" in refusal(folder, Path("prefill.yaml"))
        assert draft_recipe(folder, Path("decode.yaml")).values["ranks"] == 2

    def test_ranks_that_run_different_modules(self, root: Path) -> None:
        """Attention on one half, experts on the other."""
        assert "enable_afd" in refusal(vary(root, enable_afd=True))

    @pytest.mark.parametrize(
        ("platform", "world", "hosts", "ranks"),
        [("950", 8, 1, 8), ("950", 16, 2, 8), ("A3", 16, 1, 16), ("A3", 32, 2, 16), (None, 128, 8, 16)],
    )
    def test_dies_of_a_server(self, root: Path, platform: str | None, world: int, hosts: int, ranks: int) -> None:
        """8 on Atlas 950, 16 on Atlas A3; more ranks are on several servers."""
        draft = draft_recipe(vary(root, world_size=world, batch_size=world, platform_version=platform))
        assert (draft.values.get("hosts", 1), draft.values["ranks"]) == (hosts, ranks)
        assert ("--engine ray" in draft.text.splitlines()[0]) is (hosts > 1)
        (root / "recipe.yaml").write_text(draft.text)
        assert read_recipe(root / "recipe.yaml").all_ranks == world

    def test_the_script_takes_its_servers_from_sktune(self, root: Path) -> None:
        """What to write into it is said, unless it is there."""
        folder = vary(root, world_size=32, batch_size=32)
        line = "export IPs=(${SKTUNE_HOSTS//,/ })"
        assert any(f"write `{line}` into executor/scripts/set_env.sh" in each for each in draft_recipe(folder).to_do)
        (root / "executor" / "scripts" / "set_env.sh").write_text(f"{line}\n")
        assert not any("SKTUNE_HOSTS" in each for each in draft_recipe(folder).to_do)
        (folder / "set_env.sh").write_text("export IPs=('xx.xx.xx.xx')\n")  # read after the other
        own = (folder / "set_env.sh").relative_to(root).as_posix()
        assert any(f"write `{line}` into {own}" in each for each in draft_recipe(folder).to_do)

    def test_a_number_of_ranks_that_fills_no_servers(self, root: Path) -> None:
        """They would have different numbers of ranks."""
        assert "hosts would have different numbers of ranks" in refusal(vary(root, world_size=17))

    def test_a_platform_that_is_not_named(self, root: Path) -> None:
        """16 ranks are one server of one platform, and two of another."""
        assert any("two of Atlas 950" in line for line in draft_recipe(vary(root, world_size=16, batch_size=8)).unknown)

    def test_a_platform_without_documented_superkernels(self, root: Path) -> None:
        """It is a note: nobody has said that they do not work."""
        draft = draft_recipe(vary(root, platform_version="950"))
        assert any("whether SuperKernels work on Atlas 950" in line for line in draft.unknown)

    def test_a_model_that_the_program_does_not_know(self, root: Path) -> None:
        """By its registry."""
        (root / "executor/core/support_models.py").write_text('_specs = {"other": [("models.other.m", "Other")]}\n')
        assert "knows no model 'tiny_moe'" in refusal(root / MODEL)

    def test_batch_and_decoder_are_stated(self, root: Path) -> None:
        """A plan is tuned for the batch, and applied to the class."""
        (root / MODEL / "models" / "draft.py").write_text("class Other:\n    pass\n")
        (root / "executor/core/support_models.py").write_text(
            '_specs: dict[str, list] = {"tiny_moe": [("models.tiny_moe.models.modeling_tiny_moe", "TinyMoe")]}\n'
        )
        found = draft_recipe(vary(root, batch_size=4, attn_tp_size=1)).found
        assert "batch_size is 4, 2 in each of 2 data-parallel groups; a plan is tuned for this batch" in found
        assert any("in models/tiny_moe/models/modeling_tiny_moe.py" in line for line in found)

    @pytest.mark.parametrize(
        ("values", "groups"),
        [
            ({"world_size": 32}, 16),  # none in each
            ({"batch_size": 3, "attn_tp_size": 1}, 2),
            ({"world_size": 16, "batch_size": 12, "attn_tp_size": 2}, 8),
        ],
    )
    def test_a_batch_that_its_groups_cannot_share(self, root: Path, values: dict[str, int], groups: int) -> None:
        """The program of a checkout refuses it; of others it is said."""
        folder = vary(root, **values)  # type: ignore[arg-type]
        assert f"{groups} data-parallel groups (world_size / attn_tp_size) cannot share equally" in refusal(folder)
        command = f"python3 infer.py {NAME}"
        draft = draft_recipe(root / MODEL, root / MODEL / "config" / NAME, command)
        assert any(f"set batch_size to a multiple of {groups}" in line for line in draft.to_do)
        assert not any("in each of" in line for line in draft.found)

    def test_a_batch_without_tensor_parallelism(self, root: Path) -> None:
        """Where the YAML does not say it, each rank of a checkout's program is a group."""
        folder = vary(root, batch_size=3)
        file = folder / "config" / NAME
        file.write_text(file.read_text().replace("attn_tp_size: 2", "moe_tp_size: 2"))
        assert "batch_size is 3, which 2 data-parallel groups" in refusal(folder)


class TestBackend:
    """The backend is that of an NPU if anything shows that the program is for one."""

    @pytest.mark.parametrize(
        ("source", "settings", "backend", "words"),
        [
            ("from executor.utils import superkernel_scope", {}, "npu", "have superkernel_scope"),
            ("import torch_npu, torchair", {}, "npu", "have torch_npu and torchair"),
            ("import torch", {"exe_mode": "ge_graph"}, "npu", "have exe_mode"),
            ("import torch", {"exe_mode": "npugraph_ex"}, "npugraph-ex", "have exe_mode"),
            (
                "import torch",
                {"world_size": 2},
                "inductor",
                "have no torch_npu, torchair, superkernel_scope or exe_mode",
            ),
        ],
    )
    def test_what_shows_it(
        self, tmp_path: Path, source: str, settings: dict[str, Any], backend: str, words: str
    ) -> None:
        """An import, the recipes' own scopes, or the YAML's mode."""
        (tmp_path / "infer.py").write_text(f"{source}\n")
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(settings))
        draft = draft_recipe(tmp_path, tmp_path / "run.yaml", "python3 infer.py run.yaml")
        assert draft.values["backend"] == backend
        assert any(line.endswith(words) and f"backend is {backend}" in line for line in draft.found)


def test_comments_say_what_is_to_do(root: Path, tmp_path: Path) -> None:
    """What needs the user is told from what only a run shows; a key that has a value is neither."""
    (tmp_path / "infer.py").write_text("import torch\n")
    lines = draft_recipe(tmp_path, command="python3 infer.py").text.splitlines()
    to_do = [line for line in lines if line.startswith("# TO DO: ")]
    assert [line.split()[3] for line in to_do] == ["name", "set"]  # the YAML, and `ranks`
    assert any(line.startswith("# found: timeout_s is 1800") for line in lines)
    assert not any("NOT KNOWN" in line for line in lines)
    lines = draft_recipe(root / MODEL).text.splitlines()
    assert any(line.startswith("# NOT KNOWN before a run: the context") for line in lines)
    assert not any("TO DO" in line for line in lines)


class TestMeasuredStep:
    """What is said of the step that is measured: its context, its role, its weights."""

    @pytest.mark.parametrize(
        ("values", "words"),
        [
            ({"input_truncated_len": 4096}, "decode steps are measured with at most 4256 tokens"),
            ({"input_max_len": 32, "next_n": 3}, "at most 672 tokens"),
            ({"input_truncated_len": 128, "max_new_tokens": 8}, "at most 160 tokens"),
        ],
    )  # fmt: skip
    def test_context(self, root: Path, values: dict[str, Any], words: str) -> None:
        """The longest prompt and all tokens that the copy's run generates, with those of draft models."""
        assert any(words in line for line in draft_recipe(vary(root, **values)).found)

    def test_context_by_the_programs_default(self, root: Path) -> None:
        """The YAML has none: it is the sources' number, with its place; without one it is not known."""
        folder = vary(root)
        assert any("context that is measured" in line for line in draft_recipe(folder).unknown)
        file = root / "executor" / "core" / "config.py"
        file.write_text("def read(data):\n    return data.get('input_truncated_len', 256)\n")
        found = draft_recipe(folder).found
        assert any("is 256, as the YAML has none, by executor/core/config.py:2" in line for line in found)
        file.write_text(
            "def read(data):\n    data.get('input_truncated_len', 1)\n    data.get('input_truncated_len', 2)\n"
        )
        assert any("context that is measured" in line for line in draft_recipe(folder).unknown)

    def test_prompts_that_are_shorter(self, root: Path) -> None:
        """The default prompt is short, whatever the YAML allows."""
        (root / "dataset").mkdir()
        (root / "dataset" / "default_prompt.json").write_text('{"text": "An attention function"}')
        found = draft_recipe(vary(root, input_truncated_len=4096)).found
        assert any("whose prompt has 21 characters" in line for line in found)
        assert not any("characters" in line for line in draft_recipe(vary(root, dataset="LongBench")).found)

    def test_the_decode_role(self, root: Path) -> None:
        """It is the honest one of the two, but offline it has not the context that it serves."""
        folder = vary(root, name="decode.yaml", input_truncated_len=256, max_prefill_tokens=8192)
        shutil.copy(folder / "config" / "decode.yaml", folder / "config" / "prefill.yaml")
        draft = draft_recipe(folder, Path("decode.yaml"))
        assert any("decode role of a deployment" in line for line in draft.found)
        line = next(line for line in draft.to_do if "the deployment serves" in line)
        assert "max_prefill_tokens 8192" in line
        assert "set model_config.input_truncated_len and batch_size" in line

    def test_a_yaml_for_prefill(self, root: Path) -> None:
        """It is started offline with decode steps, but its sizes are those of prefill."""
        folder = vary(root, name="prefill_32dp.yaml")
        shutil.copy(folder / "config" / "prefill_32dp.yaml", folder / "config" / "decode_16ep.yaml")
        draft = draft_recipe(folder, Path("prefill_32dp.yaml"))
        assert any("name says prefill" in line and "decode_16ep.yaml" in line for line in draft.to_do)

    def test_random_weights_and_fewer_layers(self, root: Path) -> None:
        """In force, or available; not offered where the sources do not read them."""
        folder = vary(root)
        assert not any("yaml.set" in line for line in draft_recipe(folder).found)
        source = root / "executor" / "core" / "worker.py"
        source.write_text(
            "def f(config, custom_params):\n    config.with_ckpt\n    custom_params['num_hidden_layers']\n"
        )
        line = next(line for line in draft_recipe(folder).found if "all weights are loaded" in line)
        assert "model_config.with_ckpt: false" in line
        assert "model_config.custom_params.num_hidden_layers" in line
        found = draft_recipe(vary(root, with_ckpt=False, num_hidden_layers=4)).found
        assert any("weights are random" in line for line in found)
        assert any("tuned for 4 layers" in line for line in found)
        assert not any("all weights are loaded" in line for line in found)

    def test_placeholders(self, root: Path) -> None:
        """With their places, in the scripts that the command runs and in the YAML; not in comments."""
        script = root / "executor" / "scripts" / "infer.sh"
        script.write_text('source "${SCRIPT_PATH}/set_env.sh"  # your_own\n' + script.read_text())
        script.with_name("set_env.sh").write_text('cann_path="your_cann_pkgs_path"\n')
        to_do = draft_recipe(vary(root, model_path="your_model_path")).to_do
        line = next(line for line in to_do if "placeholders" in line)
        assert "your_cann_pkgs_path (executor/scripts/set_env.sh:1)" in line
        assert "model_config.model_path: your_model_path" in line
        assert "your_own" not in line


class TestOlderRelease:
    """cann-recipes-infer of December 2025: each model's ``infer.sh`` names its YAML itself."""

    SCRIPT = """SCRIPT_PATH=$(cd "$(dirname "${BASH_SOURCE[0]}")" &>/dev/null && pwd)
source ${SCRIPT_PATH}/../../executor/scripts/function.sh
export YAML_PARENT_PATH="${SCRIPT_PATH}/config"
export YAML_FILE_NAME="your_yaml_file_name" # modify to your yaml file name
export YAML=${YAML_PARENT_PATH}/${YAML_FILE_NAME}
launch
"""

    @pytest.fixture
    def older(self, root: Path) -> Path:
        """The project as it would have been then, with a launch that only shows the YAML."""
        (root / "executor" / "scripts" / "infer.sh").unlink()
        (root / "executor" / "scripts" / "function.sh").write_text("launch() { head -n 1 $YAML; pwd; }\n")
        (root / MODEL / "infer.sh").write_text(self.SCRIPT)
        return root

    @pytest.mark.parametrize("inside", ["", "ci"])
    def test_it_is_started_with_the_copy(self, older: Path, inside: str) -> None:
        """The script is not edited, and starts what it starts by itself, with another YAML."""
        config = older / MODEL / "config"
        (config / inside).mkdir(exist_ok=True)
        (config / NAME).rename(config / inside / NAME)
        draft = draft_recipe(older / MODEL)
        (older / "recipe.yaml").write_text(draft.text)
        recipe = read_recipe(older / "recipe.yaml")
        copy = config / inside / "copy.yaml"
        copy.write_text("# this one\n")
        done = subprocess.run(recipe.argv(copy), cwd=recipe.directory, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines() == ["# this one", str(older / MODEL)]
        assert recipe.ranks == 2
        assert (older / MODEL / "infer.sh").read_text() == self.SCRIPT

    def test_its_placeholder_is_the_yaml(self, older: Path) -> None:
        """Which the command names, so that nothing is to be filled in."""
        assert not any("placeholders" in line for line in draft_recipe(older / MODEL).to_do)

    def test_a_script_of_another_kind(self, older: Path) -> None:
        """It starts something else."""
        (older / MODEL / "infer.sh").write_text("python3 -m sglang.launch_server\n")
        assert "no Python program" in refusal(older / MODEL)


class TestLonePrograms:
    """A Python program is one if its sources show a decode step; see benchmarks/field for real ones."""

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("collect_env.py", "import re, torch\nre.compile('x')\nfor line in b''.split():\n    line.decode()\n"),
            ("configure.py", "import torch\nprint(torch.compiled_with_cxx11_abi())\n"),
            ("make.py", "def generate():\n    pass\n\ngenerate()\n"),
            ("unused.py", "import torch\n\ndef step():\n    torch.compile(print)\n"),
            ("tool.py", "from helper import version\nprint(version())\n"),
            ("test_step.py", "import torch\ntorch.compile(print)\n"),
            ("checks.py", "import torch, unittest\ntorch.compile(print)\n"),
            ("broken.py", "def :\n"),
        ],
    )
    def test_what_shows_no_decode_step(self, tmp_path: Path, name: str, text: str) -> None:
        """It is refused in one line that names it."""
        (tmp_path / "helper.py").write_text(
            "import torch\n\ndef version():\n    return 1\n\ndef run():\n    torch.compile(version)\n"
        )
        (tmp_path / name).write_text(f"{text}\nif __name__ == '__main__':\n    pass\n")
        assert name in refusal(tmp_path)

    @pytest.mark.parametrize(
        "text",
        [
            "import torch as t\nt.compile(print)\n",
            "from torch import compile as build\nbuild(print)\n",
            "import torch\n\n@torch.compile\ndef step():\n    pass\n\nstep()\n",
            "from helper import Engine\nEngine()()\n",
            "import helper\nhelper.backend()\n",
            "from vllm import LLM\nLLM('m').generate(['x'])\n",
            "import torch\n\ndef decode_one_token(x):\n    return x\n\nfor _ in range(9):\n    decode_one_token(1)\n",
        ],
    )
    def test_what_shows_one(self, tmp_path: Path, text: str) -> None:
        """In its own code, or in what it reaches in modules of its folder; tools beside it do not count."""
        (tmp_path / "helper.py").write_text(
            "import torch, torchair\n\nclass Engine:\n    def __call__(self):\n        torch.compile(print)\n\n"
            "def backend():\n    torchair.get_npu_backend()\n"
        )
        main = "\nif __name__ == '__main__':\n    pass\n"
        (tmp_path / "infer.py").write_text(text + main)
        (tmp_path / "collect_env.py").write_text("import torch\n" + main)
        assert draft_recipe(tmp_path).values["command"] == "python3 infer.py"

    def test_a_script_that_starts_none(self, tmp_path: Path) -> None:
        """Whatever it starts has no decode step that is seen."""
        (tmp_path / "run.sh").write_text("python3 setup.py build\n")
        (tmp_path / "setup.py").write_text("print()\n")
        assert "run.sh" in refusal(tmp_path)


class TestFiles:
    """Which YAML is meant, and which script starts it."""

    def test_a_yaml_outside_of_the_checkout_is_the_one_that_runs(self, root: Path, tmp_path: Path) -> None:
        """Though the checkout has one of that name; the script gets a path that leads there."""
        own = tmp_path / "own folder" / NAME
        own.parent.mkdir()
        shutil.copy(root / MODEL / "config" / NAME, own)
        draft = draft_recipe(root / MODEL, own)
        (tmp_path / "recipe.yaml").write_text(draft.text)
        recipe = read_recipe(tmp_path / "recipe.yaml")
        assert recipe.yaml is not None
        assert recipe.yaml.file == own
        argument = recipe.argv(own)[-1]
        assert Path(os.path.normpath(root / MODEL / "config" / argument)) == own

    def test_a_missing_yaml_is_not_replaced_by_one_of_that_name(self, root: Path) -> None:
        """A path names one file."""
        assert "there is no file" in refusal(root / MODEL, Path("elsewhere") / NAME)

    def test_names_that_several_models_share(self, root: Path) -> None:
        """The folder tells them apart."""
        shutil.copytree(root / MODEL, root / "models" / "other")
        for model in ("tiny_moe", "other"):
            folder = root / "models" / model / "config" / f"{model}_pd"
            folder.mkdir()
            (folder.parent / NAME).rename(folder / "decode.yaml")
        assert "tiny_moe_pd/decode.yaml" in refusal(root, Path("decode.yaml"))
        draft = draft_recipe(root, Path("tiny_moe_pd/decode.yaml"))
        assert draft.values["command"].endswith("--model tiny_moe --yaml tiny_moe_pd/{yaml_name}")

    def test_a_script_that_names_its_yaml(self, root: Path) -> None:
        """The checkout's script starts the same launch with any YAML, on all ranks."""
        (root / MODEL / "infer.sh").write_text("source ../../executor/scripts/function.sh\nexport YAML=x\nlaunch\n")
        draft = draft_recipe(root / MODEL)
        assert draft.values["command"].startswith("bash executor/scripts/infer.sh --model tiny_moe")
        assert draft.values["ranks"] == 2

    def test_a_model_without_decode_steps(self, root: Path) -> None:
        """Its own script does something else."""
        (root / MODEL / "infer.sh").write_text("source ../../executor/scripts/mm_function.sh\nmm_launch\n")
        (root / MODEL / "config" / NAME).write_text("world_size: 8\n")
        for arguments in ((root / MODEL,), (root, root / MODEL / "config" / NAME)):
            assert "no decode step that sktune knows of" in refusal(*arguments)

    def test_the_command_ends_with_the_reason(self, root: Path, tmp_path: Path) -> None:
        """One line, exit code 2, and no file."""
        done = sktune_command("recipe", "init", str(vary(root, max_new_tokens=1)), folder=tmp_path)
        assert done.returncode == 2
        assert len(done.stderr.strip().splitlines()) == 1
        assert not (tmp_path / "recipe.yaml").exists()

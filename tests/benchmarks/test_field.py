"""The check of the field itself: on a project of our own, it passes what is right and finds what is wrong."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.field import __main__ as field
from benchmarks.field import folders, profiles
from sktune.core.scope_flavour import ScopeFlavour
from sktune.source.codemod import Rewritten, rewrite
from tests.profiles import deepseek, kernel_details, npu_trace, write
from tests.projects import TEMPLATE

RECIPES = TEMPLATE.root.parent / "recipes" / "models"
FACTS = {
    "attention": "self_attn", "feed_forward": "mlp", "first": "input_layernorm", "last": "mlp",
    "model": "DraftsModel", "layer": "DecoderLayer", "drafts": ["DraftsModelMTPLayer"],
}  # fmt: skip
FOLDER = field.Folder(RECIPES / "drafts", FACTS)
PLAN = field.each([("self_attn", "self_attn"), ("mlp", "mlp")])


def planted(old: str, new: str) -> Callable[..., Rewritten]:
    """Return a rewriting that then replaces ``old`` in the source."""

    def changed(*arguments: Any) -> Rewritten:
        result = rewrite(*arguments)
        assert old in result.text
        return Rewritten(result.text.replace(old, new), result.notes, result.readings)

    return changed


@pytest.mark.parametrize("flavour", [ScopeFlavour.SUPERKERNEL, ScopeFlavour.CAPTURED])
def test_a_plan_that_is_applied_correctly_is_entered(flavour: ScopeFlavour) -> None:
    """Every scope around its units, none in drafts and prefill, the same data flow."""
    assert field.check(FOLDER, PLAN, None, flavour)[0] == "entered"


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        (" and not self.is_draft_layer", "", "DraftsModelMTPLayer has scopes in decode"),
        (" and not forward_metadata.is_prefill", "", "DraftsModel has scopes in prefill"),
        ("hidden_states = self.mlp(hidden_states)", "hidden_states = self.mlp(residual)", "computes something else"),
        ('f"self_attn_{self.layer_idx}"', '"self_attn"', "is in the scopes"),
    ],
)
def test_what_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch, old: str, new: str, found: str) -> None:
    """Each defect that the issue names, planted."""
    monkeypatch.setattr(field, "rewrite", planted(old, new))
    result = field.check(FOLDER, PLAN)[0]
    assert result.startswith("WRONG") and found in result


def test_the_flag_is_asked_of_the_programs_own_class() -> None:
    """Every YAML of the folder."""
    _, rewritten = field.check(FOLDER, PLAN)
    assert rewritten
    configuration = Path(RECIPES.parent / "executor" / "config.py")
    assert field.flags_read(FOLDER, rewritten.readings, configuration) == "1 of 1"
    assert field.flags_read(FOLDER, [None], configuration).startswith("refused: ")


def test_folders_get_a_recipe_or_a_line(tmp_path: Path) -> None:
    """Each folder of a project and each YAML of a model; what is stated of a recipe is kept as a fact."""
    root = RECIPES.parents[1] / "ranks"
    results = {each.name: each for each in folders.drafted(root, tmp_path)}
    drafted = results["models/tiny_moe/config/tiny_moe_2tp.yaml"]
    assert drafted.fact["ranks"] == 2
    assert "--model tiny_moe" in drafted.fact["command"]
    assert drafted.doctor == ""
    assert all(bool(each.draft) != bool(each.refusal) for each in results.values())
    (tmp_path / "tool").mkdir()
    (tmp_path / "tool" / "collect_env.py").write_text("if __name__ == '__main__':\n    print()\n")
    (whole, inner) = folders.drafted(tmp_path, tmp_path)
    assert (whole.reason, inner.reason) == ("no program", "Python programs without a decode step")


@pytest.mark.parametrize(("name", "writer"), [("kernel_details.csv", kernel_details), ("trace_view.json", npu_trace)])
def test_a_profile_that_differs_from_what_is_stated_is_found(
    tmp_path: Path, name: str, writer: Callable[..., str]
) -> None:
    """The figures of a profile are equal; those of one whose kernels are longer are not."""
    kernels = deepseek(3, 1, 2)
    said = profiles.ask(write(tmp_path / name, writer(kernels)))
    read = profiles.of_csv if name.endswith(".csv") else profiles.of_trace
    for duration, verdicts in ((0, {"equal"}), (3, {"equal", "WRONG"})):
        longer = [replace(kernel, duration=kernel.duration + duration) for kernel in kernels]
        facts = read(writer(longer).encode())
        assert facts
        assert {verdict for *_, verdict in profiles.checked(facts, said)} == verdicts
    refusal = profiles.ask(write(tmp_path / "empty.csv", ""))
    assert profiles.refused(refusal)[-1] == "refused"

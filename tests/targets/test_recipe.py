"""The digest of a recipe: what the program's figures depend on, and nothing that sktune writes beside it."""

from pathlib import Path

from sktune.core.files import mark_as_written
from sktune.targets.recipe import digest, read_recipe

RECIPE = "version: 1\nname: mine\ncommand: python3 infer.py\nranks: 1\ntimeout_s: 60\n"


def digest_in(folder: Path) -> str:
    """Return the digest of the recipe in a folder."""
    path = folder / "recipe.yaml"
    return digest(read_recipe(path), path)


def test_a_search_from_the_programs_own_folder_can_be_continued(tmp_path: Path) -> None:
    """What compilers generate in ``runs/`` is no source; the program's own files are, wherever they are."""
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "infer.py").write_text("print(1)\n")
    before = digest_in(tmp_path)
    for folder in (tmp_path / "runs" / "cache", tmp_path / "runs" / "mine-npu"):
        mark_as_written(folder)
        (folder / "ff").mkdir()
        (folder / "ff" / "generated.py").write_text("print(2)\n")
    assert digest_in(tmp_path) == before
    (tmp_path / "runs" / "model.py").write_text("print(3)\n")
    assert digest_in(tmp_path) != before

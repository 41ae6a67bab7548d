"""The picture of a plan: what it shows, that it is one safe SVG, and that the documentation's is up to date."""

from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from sktune.core.codec import decoded
from sktune.core.errors import PlanError
from sktune.core.layout import Layer, Layout, Unit
from sktune.core.plan import Plan, Scope
from sktune.reports.plan_picture import WIDTH, plan_picture
from tests.builders import ROOT

IMAGES = ROOT / "docs" / "images"
SVG = "{http://www.w3.org/2000/svg}"


def layout_of(layers: int, keys: tuple[str, ...] = ("attention", "mlp")) -> Layout:
    """Return layers of one kind between an embedding and a head."""
    inside = (Unit(f"layers.{index}.{key}", key, index) for index in range(layers) for key in keys)
    return Layout(
        (Unit("embedding", "embedding"), *inside, Unit("head", "head")),
        tuple(Layer(f"layers.{index}", "dense") for index in range(layers)),
    )


def drawn(plan: Plan, layout: Layout) -> ElementTree.Element:
    """Return the picture, parsed."""
    return ElementTree.fromstring(plan_picture(plan, layout))


def texts(picture: ElementTree.Element) -> list[str]:
    return ["".join(text.itertext()) for text in picture.iter(f"{SVG}text")]


def bars(picture: ElementTree.Element) -> list[str]:
    """Return the titles of the bars above the units."""
    return ["".join(path.itertext()) for path in picture.iter(f"{SVG}path")]


def test_the_picture_in_the_documentation_is_up_to_date() -> None:
    """Drawing it again gives the same file."""
    data: Any = yaml.safe_load((IMAGES / "plan.yaml").read_text(encoding="utf-8"))
    picture = plan_picture(decoded(Plan, data["plan"]), decoded(Layout, data["layout"]))
    assert picture == (IMAGES / "plan.svg").read_text(encoding="utf-8")


def test_every_scope_has_a_bar_with_its_options() -> None:
    """Scopes with the same options have the same letter, and the options are written out once."""
    fused = (("stream-fusion", 1),)
    plan = Plan((
        Scope("embedding", "layers.0.attention", fused),
        Scope("layers.0.mlp", "layers.1.attention"),
        Scope("layers.1.mlp", "head", fused),
    ))  # fmt: skip
    picture = drawn(plan, layout_of(2))
    assert bars(picture) == [
        "embedding..layers.0.attention: stream-fusion=1",
        "layers.0.mlp..layers.1.attention: default options",
        "layers.1.mlp..head: stream-fusion=1",
    ]
    assert {"2 scopes: stream-fusion=1", "1 scope: default options"} <= set(texts(picture))


def test_layers_that_look_alike_are_drawn_once() -> None:
    """With their number; also a pattern over two layers."""
    each = Plan(tuple(Scope(f"layers.{index}.attention", f"layers.{index}.mlp") for index in range(40)))
    assert "layers 0 to 39: 40 \u00d7 dense" in texts(drawn(each, layout_of(40)))
    pairs = Plan(tuple(Scope(f"layers.{index}.attention", f"layers.{index + 1}.mlp") for index in range(0, 40, 2)))
    picture = drawn(pairs, layout_of(40))
    assert "layers 0 to 39: 20 \u00d7 2 dense" in texts(picture)
    assert len(bars(picture)) == 1


def test_layers_with_different_options_are_drawn_separately() -> None:
    """They do not look alike."""
    scopes = (Scope(f"layers.{index}.mlp", f"layers.{index}.mlp", (("split-mode", 2 + index),)) for index in range(4))
    assert len(bars(drawn(Plan(tuple(scopes)), layout_of(4)))) == 4


def test_a_plan_without_scopes_has_a_picture() -> None:
    """The baseline has units, but no bars."""
    picture = drawn(Plan(options=(("topology_sorting_strategy", "DFS"),)), layout_of(2))
    assert not bars(picture)
    assert "Whole step: topology_sorting_strategy=DFS" in texts(picture)


def test_nothing_is_drawn_outside_of_the_picture() -> None:
    """If many layers differ, the picture has several rows."""
    scopes = (Scope(f"layers.{index}.mlp", f"layers.{index}.mlp", (("split-mode", 1 + index),)) for index in range(60))
    picture = drawn(Plan(tuple(scopes)), layout_of(60, ("norm", "attention", "mlp")))
    height = int(picture.attrib["viewBox"].split()[3])
    for box in picture.iter(f"{SVG}rect"):
        x, y, width, high = (float(box.attrib[name]) for name in ("x", "y", "width", "height"))
        assert x >= 0
        assert x + width <= WIDTH
        assert y + high <= height


def test_a_picture_is_safe_and_accessible() -> None:
    """Names are text, nothing is loaded or run, and screen readers get a title and a description."""
    name = 'a<script>alert("&")</script>'
    layout = Layout((Unit(name, name, 0),), (Layer("<layer>", "<kind>"),))
    text = plan_picture(Plan((Scope(name, name, (("<option>", "&value"),)),)), layout)
    picture = ElementTree.fromstring(text)
    assert not {"script", "image", "foreignObject"} & {element.tag.removeprefix(SVG) for element in picture.iter()}
    assert "href" not in text
    labels = [picture.find(f"{SVG}{tag}") for tag in ("title", "desc")]
    assert [label.attrib["id"] for label in labels if label is not None] == picture.attrib["aria-labelledby"].split()
    assert labels[1] is not None
    assert f"Scope {name} with <option>=&value" in (labels[1].text or "")


def test_a_plan_for_another_model_is_refused() -> None:
    """As everywhere."""
    with pytest.raises(PlanError, match="the model has no unit"):
        plan_picture(Plan((Scope("other", "other"),)), layout_of(1))

"""What a search prepares: its space, bound to a model, a backend and a device."""

import pytest

from sktune.tuning.request import Request, bind_space, space_spec
from tests.builders import decoder_layout


@pytest.mark.parametrize("model", ["deepseek-v3", "llama", "qwen3", "qwen3-moe"])
def test_starting_points_have_options_of_their_device_only(model: str) -> None:
    """C++ wrappers are for CPUs; a GPU starts with CUDA graphs."""
    points = {}
    for device in ("cpu", "cuda"):
        request = Request(model, device=device)
        spec, preset = request.target()
        layout = decoder_layout(("dense", "moe") if preset and "experts" in str(preset.model.published) else ("dense",))
        points[device] = bind_space(space_spec(request, spec, preset), layout, spec).starting_points
    assert {"whole step, C++ wrapper"} == {point.name for point in points["cpu"]} - {p.name for p in points["cuda"]}
    assert all(point.values["cuda_graph"] for point in points["cuda"])

"""Graph dumps of TorchAir and GE are read without protobuf.

``data/torchair_dump.txt`` and ``.pbtxt`` are what the real TorchAir (torch_npu 2.13.0, ``config.debug.graph_dump``, its
front end run without a device) wrote for::

    with torchair.scope.super_kernel("mlp_start_0", "stream-fusion=1"):
        h = torch.softmax(x @ w1, dim=-1)
        with torchair.scope.npu_stream_switch("side"):
            h = h * 2
    with torchair.scope.super_kernel("out"):
        y = (h.float() * 0.5).bfloat16() @ w2
        with torchair.scope.super_kernel(None):
            y = y.relu()
    return y + x

The files ``data/ge_*`` are written for these tests in GE's formats.
"""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sktune.ascend.ge_graph import GeGraph, TensorSpec, read_ge_graph
from sktune.core.errors import BadInputError
from tests.builders import TESTS

DATA = TESTS / "data"
TORCHAIR = ("torchair_dump.txt", "torchair_dump.pbtxt")
DUMPS = (*TORCHAIR, "ge_proto_AfterSkGraph.txt", "ge_onnx.pbtxt")


@pytest.mark.parametrize("name", TORCHAIR)
def test_each_scope_has_the_operators_that_torchair_marked(name: str) -> None:
    """An operator belongs to its innermost scope; under ``super_kernel(None)`` it belongs to none."""
    scopes = read_ge_graph(DATA / name).by_scope()
    assert {label: [operator.name for operator in operators] for label, operators in scopes.items()} == {
        "mlp_start_0": ["MatMul", "SoftmaxV2", "Muls", "Cast"],
        "out": ["Cast_1", "Mul", "Cast_2", "Cast_3", "MatMul_1"],
    }
    assert {operator.options for operator in scopes["mlp_start_0"]} == {"stream-fusion=1"}
    assert {operator.options for operator in scopes["out"]} == {""}


def test_both_formats_of_torchair_give_the_same_graph() -> None:
    """txt and pbtxt hold the same graph; only txt names it."""
    text, tensorboard = (read_ge_graph(DATA / name) for name in TORCHAIR)
    assert text.operators == tensorboard.operators
    assert text.name == "graph_1"


@pytest.mark.parametrize("name", TORCHAIR)
def test_streams_edges_and_shapes_are_read(name: str) -> None:
    """Shapes come from the descriptor, from TorchAir's _meta, or, inside one ATen operator, from inference."""
    operators = {operator.name: operator for operator in read_ge_graph(DATA / name).operators}
    assert operators["MatMul"].inputs == ("arg0_1:0", "arg1_1:0")  # the unconnected bias is not an edge
    assert operators["MatMul"].input_specs == (TensorSpec((4, 32), "bfloat16"), TensorSpec((32, 64), "bfloat16"))
    assert operators["MatMul"].output_specs == (TensorSpec((4, 64), "bfloat16"),)
    assert (operators["Muls"].stream, operators["MatMul"].stream) == ("side", "")
    assert operators["Muls"].output_specs == (TensorSpec((4, 64), "bfloat16"),)
    assert operators["Mul"].output_specs == (TensorSpec((4, 64), "float32"),)


def test_tasks_are_what_the_device_runs() -> None:
    """Inputs, outputs and constants are not tasks."""
    graph = read_ge_graph(DATA / TORCHAIR[0])
    left_out = {operator.type for operator in graph.operators} - {operator.type for operator in graph.device_tasks}
    assert left_out == {"Data", "Const", "NetOutput"}


def test_what_depends_only_on_constants_is_folded() -> None:
    """GE computes it at compile time; views have no task either."""
    graph = read_ge_graph(
        """
        op { name: "c" type: "Const" output_desc { dtype: DT_INT64 shape { } } }
        op { name: "r" type: "Range" input: "c:0" input: "c:0" }
        op { name: "x" type: "Data" }
        op { name: "a" type: "Add" input: "x:0" input: "r:0" }
        op { name: "v" type: "Reshape" input: "a:0" input: "c:0" }
        op { name: "o" type: "NetOutput" input: "v:0" }
        """
    )
    assert [operator.name for operator in graph.device_tasks] == ["a"]


def test_ge_shows_superkernels_and_what_is_in_them() -> None:
    """The graph after fusion has the SuperKernels; the dump of each subgraph has the operators inside."""
    root = read_ge_graph(DATA / "ge_proto_AfterSkGraph.txt")
    assert [task.type for task in root.device_tasks] == [
        "SuperKernel", "SoftmaxV2", "SuperKernel", "SuperKernel", "Relu", "Add"
    ]  # fmt: skip
    assert [task.stream for task in root.device_tasks][:3] == ["", "", "1"]
    inner = read_ge_graph(DATA / "ge_proto_super_kernel_sub_graph1.txt")
    assert [(task.name, task.superkernel) for task in inner.device_tasks] == [
        ("Muls", "sk_mlp_start_0_split_4_7_start_Muls_end_Cast"),
        ("Cast", "sk_mlp_start_0_split_4_7_start_Muls_end_Cast"),
    ]
    assert inner.device_tasks[0].output_specs == (TensorSpec((4, 64), "bfloat16"),)


def test_a_subgraph_inside_its_superkernel_is_read_too() -> None:
    """After GE has compiled, the subgraph is an attribute of the SuperKernel."""
    graph = read_ge_graph(
        """graph { name: "g"
        op { name: "sk_a_start_x_end_x" type: "SuperKernel"
             attr { key: "_sk_sub_graph" value { g { name: "sub_graph0" op { name: "x" type: "Add" } } } } }
        op { name: "NetOutput" type: "NetOutput" } }"""
    )
    assert [(task.name, task.superkernel) for task in graph.device_tasks] == [
        ("sk_a_start_x_end_x", ""),
        ("x", "sk_a_start_x_end_x"),
    ]


PARTITIONS = {
    "ge_proto_00000067_partition0_rank1_new_sub_graph1_AtomicEnginePartitioning.txt": """name: "model"
graph {
  name: "partition0_rank1_new_sub_graph1"
  op { name: "PlaceHolder0" type: "PlaceHolder" }
  op { name: "Add" type: "Add" input: "PlaceHolder0:0" attr { key: "_super_kernel_scope" value { s: "mlp" } } }
  op { name: "End0" type: "End" input: "Add:0" }
}
""",
    "ge_onnx_00000067_partition0_rank1_new_sub_graph1_AtomicEnginePartitioning.pbtxt": """graph {
  node { name: "PlaceHolder0" op_type: "ge:PlaceHolder" }
  node {
    name: "Add" op_type: "ge:Add" input: "PlaceHolder0:0" attribute { name: "_super_kernel_scope" s: "mlp" }
  }
  node { name: "End0" op_type: "ge:End" input: "Add:0" }
  name: "partition0_rank1_new_sub_graph1"
}
""",
}


@pytest.mark.parametrize("name", PARTITIONS)
def test_a_partition_is_whole_without_a_netoutput(name: str, tmp_path: Path) -> None:
    """GE dumps the parts that its engines compile: they begin with PlaceHolder and end with End, which have no task."""
    (tmp_path / name).write_text(PARTITIONS[name])
    graph = read_ge_graph(tmp_path / name)
    assert graph.name == "partition0_rank1_new_sub_graph1"
    assert [(task.name, task.scope) for task in graph.device_tasks] == [("Add", "mlp")]


@pytest.mark.parametrize("text", PARTITIONS.values(), ids=["proto", "onnx"])
def test_a_truncated_partition_is_named(text: str) -> None:
    """Cut anywhere between its first line and the brace that closes the graph."""
    for end in range(text.index("\n"), len(text.rstrip())):
        with pytest.raises(BadInputError, match=r"truncated|no operators"):
            read_ge_graph(text[:end])


def test_ge_onnx_dumps_are_read() -> None:
    """GE's other format: descriptors are attributes, scalars have no shape, control edges are not inputs."""
    graph = read_ge_graph(DATA / "ge_onnx.pbtxt")
    matmul, reduce = graph.device_tasks
    assert (matmul.type, matmul.scope, matmul.options) == ("MatMulV2", "a", "early-start=0")
    assert matmul.input_specs == (TensorSpec((4, 32), "bfloat16"), TensorSpec((32, 64), "bfloat16"))
    assert (reduce.inputs, reduce.stream) == (("MatMul_1:0",), "1")
    assert reduce.output_specs == (TensorSpec((), "bfloat16"),)


@pytest.mark.parametrize("name", DUMPS)
@settings(max_examples=40)
@given(st.floats(0.01, 0.999))
def test_a_truncated_dump_is_refused_in_one_line(name: str, share: float) -> None:
    """Wherever the file ends, half a graph is never returned."""
    text = (DATA / name).read_text(encoding="utf-8").rstrip()
    with pytest.raises(BadInputError) as error:
        read_ge_graph(text[: int(len(text) * share)])
    assert "\n" not in str(error.value)
    assert "truncated" in str(error.value) or "no operators" in str(error.value)


@settings(max_examples=60)
@given(
    st.sampled_from(DUMPS), st.floats(0, 0.999), st.sampled_from(["}", "{", '"', "\\", "x", "dim {", "input { }", "-"])
)
def test_a_damaged_dump_is_read_or_refused_in_one_line(name: str, share: float, damage: str) -> None:
    """No file raises anything else."""
    text = (DATA / name).read_text(encoding="utf-8")
    place = int(len(text) * share)
    try:
        assert read_ge_graph(text[:place] + damage + text[place + 1 :]).operators
    except BadInputError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("# -*- coding: utf-8 -*-\nfrom torch import tensor\n", "has no scopes; dump with graph_dump.type = 'txt'"),
        ("<html>404</html>", "protobuf text only up to line 1"),
        ("", "has no operators"),
        ('name: "x"', "has no operators"),
    ],
)
def test_what_is_not_a_dump_is_refused(text: str, fix: str) -> None:
    """One line that says what to give instead."""
    with pytest.raises(BadInputError) as error:
        read_ge_graph(text)
    assert fix in str(error.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """One line with the path."""
    with pytest.raises(BadInputError, match=r"none\.txt cannot be read \(No such file"):
        read_ge_graph(tmp_path / "none.txt")


def test_strings_are_unescaped() -> None:
    """Labels come from the user: quotes, backslashes and UTF-8, which protobuf writes as octal bytes."""
    graph: GeGraph = read_ge_graph(
        r"""op { name: "a\"b\\c" type: "Add" attr { key: "_super_kernel_scope" value { s: "\345\261\202 1\'" } } }
        op { name: 'n' type: 'NetOutput' }"""
    )
    assert (graph.operators[0].name, graph.operators[0].scope) == ('a"b\\c', "层 1'")

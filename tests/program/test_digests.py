"""Digests of a program's tensors, which need no numpy, and of its arrays, whichever numpy it has."""

import hashlib
import json
import sys

import numpy as np
import torch

from sktune.program.sktune_program.tensors import digest_of, digests_of, outputs_of
from tests.program.pythons import ran

MAKE = """
[torch.arange(6.0).view(2, 3).t(), torch.tensor([-0.0, float("nan")]), torch.zeros(0), torch.tensor(True),
 torch.ones(3, dtype=torch.bfloat16), torch.tensor([1 + 2j]).conj(), torch.tensor([0.0, 3.0]).to_sparse(),
 torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]), torch.tensor([2.0]).to(torch.float8_e4m3fn)]
"""


def test_tensors_have_the_same_digests_without_numpy() -> None:
    """In a Python where numpy cannot be imported."""
    program = (
        "import sys; sys.modules['numpy'] = None\n"
        "import json, torch\n"
        "from sktune_program.tensors import digests_of, outputs_of\n"
        f"print(json.dumps(digests_of(outputs_of({MAKE.strip()}))))\n"
    )
    done = ran([sys.executable, "-c", program])
    assert done.returncode == 0, done.stderr
    here = digests_of(outputs_of(eval(MAKE, {"torch": torch})))
    assert json.loads(done.stdout.splitlines()[-1]) == here
    assert len(here) == 9


def test_arrays_and_their_scalars_are_told_by_type_shape_and_bytes() -> None:
    """Nothing else enters the digest, so that no version of numpy changes it: its own names of types have changed."""
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    expected = hashlib.blake2b(b"float32(3, 2)" + array.tobytes(), digest_size=16).hexdigest()
    assert digest_of(array) == expected
    scalars = [np.bool_(True), np.float64(1.5), np.int64(7)]
    named = zip(("bool", "float64", "int64"), scalars, strict=True)
    values = [f"[{index}]:{name}:".encode() + value.tobytes() for index, (name, value) in enumerate(named)]
    (digest,) = digests_of(outputs_of(scalars)).values()
    assert digest == hashlib.blake2b(b"\n".join([*values, b""]), digest_size=16).hexdigest() + "/3"

"""What tests need of a release of transformers or torch."""

import pytest
import torch

from sktune.program.sktune_program.inductor.versions import number_of
from sktune.targets.static_cache import COUNTS

as_recorded = pytest.mark.skipif(not COUNTS, reason="what is expected is of transformers 5.4 and later")
shapes_only = pytest.mark.skipif(not COUNTS, reason="a model of shapes only needs transformers 5.4 or later")
keeps_bits = pytest.mark.skipif(
    number_of(torch.__version__) < (2, 10), reason="Inductor of torch 2.8 changes this program's bits"
)

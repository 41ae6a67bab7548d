"""What tests need of a release of transformers."""

import pytest

from sktune.targets.static_cache import COUNTS

as_recorded = pytest.mark.skipif(not COUNTS, reason="the files show the steps of transformers 5.4 and later")
shapes_only = pytest.mark.skipif(not COUNTS, reason="a model of shapes only needs transformers 5.4 or later")

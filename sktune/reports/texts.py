"""All words of reports and pages, in both languages, from ``texts.yaml``."""

from pathlib import Path

import yaml

from sktune.core.language import Texts

TEXTS: Texts = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))

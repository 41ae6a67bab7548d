"""All words of reports and pages, in both languages, from ``texts.yaml``."""

from pathlib import Path

import yaml

from sktune.core.language import Texts

LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader  # ten times faster, and every command waits
TEXTS: Texts = yaml.load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"), LOADER)  # noqa: S506 - safe

"""Asks the checkout's own configuration class whether scopes are on: YAML documents as JSON in, answers out."""

import json
import sys
import types
from pathlib import Path

from benchmarks.field.symbolic import Stubs


def main() -> None:
    """Read documents from standard input; argument: the file that defines ``ModelConfig``."""
    sys.meta_path.insert(0, Stubs())
    module = types.ModuleType("field_configuration")
    sys.modules[module.__name__] = module
    source = Path(sys.argv[1])
    exec(compile(source.read_text(encoding="utf-8"), str(source), "exec"), module.__dict__)
    answers = []
    for document in json.load(sys.stdin):
        document["model_config"].setdefault("platform_version", "A3")
        model = module.ModelConfig.from_dict(document["model_config"])
        answers.append(model.custom_params.get("enable_superkernel", False))
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()

import argparse
import sys
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).parents[2]))

from executor.core.logging_config import set_logging  # noqa: E402
from executor.core.model_worker import run  # noqa: E402

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--yaml_file_path", required=True)
    set_logging()
    run(yaml.safe_load(Path(parser.parse_args().yaml_file_path).read_text()))

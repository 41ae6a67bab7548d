"""One rank: builds the model, and runs prefill eagerly and decode compiled."""

import importlib.util
import logging
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

logger = logging.getLogger(__name__)


class ModelWorker:
    def __init__(self, config):
        self.config = config
        self.batch_size = config["scheduler_config"]["batch_size"]
        self.max_new_tokens = config["scheduler_config"]["max_new_tokens"]
        self.model = self.build_model()
        self.model_compiled = None

    def build_model(self):
        root = Path(__file__).parents[2] / "models" / os.environ["MODEL_DIR"] / "models"
        path = next(root.glob("modeling_*.py"))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        torch.manual_seed(0)
        return module.TinyMoeForCausalLM(self.config).eval().requires_grad_(False)

    def compile_model(self):
        if self.config["model_config"]["exe_mode"] == "ge_graph":
            torch._dynamo.config.inline_inbuilt_nn_modules = False
            self.model_compiled = torch.compile(self.model.decode, dynamic=False, fullgraph=True)
        else:
            self.model_compiled = self.model.decode

    def inference(self, model, input_ids, position, is_prefill):
        start = time.time()
        with torch.inference_mode(False), torch.no_grad():
            logits = model(input_ids, position, is_prefill=is_prefill)
        cost = (time.time() - start) * 1000
        stage = "prefill" if is_prefill else "decode"
        logger.info("[Main] Inference time (%s): %.2f ms", stage, cost)
        return logits, cost

    def generate(self, input_ids):
        length = input_ids.shape[1]
        logits, _ = self.inference(self.model, input_ids, torch.arange(length), True)
        costs = []
        for step in range(self.max_new_tokens):
            next_ids = logits[:, -1:].argmax(-1)
            logits, cost = self.inference(self.model_compiled, next_ids, torch.tensor([length + step]), False)
            costs.append(cost)
        logger.info("%s decode average inference time cost is %.2f ms",
                    self.config["model_config"]["model_name"], sum(costs[1:]) / len(costs[1:]))


def run(config):
    dist.init_process_group("gloo", rank=int(os.environ["RANK_ID"]), world_size=int(os.environ["WORLD_SIZE"]))
    torch.set_num_threads(1)
    worker = ModelWorker(config)
    worker.compile_model()
    generator = torch.Generator().manual_seed(1)
    worker.generate(torch.randint(0, 64, (worker.batch_size, 8), generator=generator))
    dist.destroy_process_group()

"""A rank of a program for an NPU: HCCL, a stream, TorchAir's backend, and, if OPERATOR says where, a fused operator."""

import os

import torch
import torch.distributed as dist
import torch_npu
import torchair
from torch import nn
from torchair.configs.compiler_config import CompilerConfig

OPERATOR = os.environ.get("OPERATOR", "")
torch.npu.config.allow_internal_format = True
torch.npu.set_compile_mode(jit_compile=False)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.out = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, hidden_states):
        return hidden_states + self.out(torch.tanh(self.mix(hidden_states)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.head = nn.Linear(16, 16)
        self.weight = nn.Parameter(torch.ones(16))
        self.cache = torch.zeros(1, 16, device="npu")

    def decode(self, hidden_states):
        for block in self.blocks:
            with torchair.scope.npu_stream_switch("second"):
                hidden_states = block(hidden_states)
        if OPERATOR == "decode":
            hidden_states = torch_npu.npu_rms_norm(hidden_states, self.weight)[0]
        self.cache.add_(hidden_states)
        return self.head(hidden_states + self.cache)


rank = int(os.environ["RANK"])
torch.npu.set_device(rank)
if OPERATOR == "import":
    torch.npu.get_device_name(rank)
dist.init_process_group("hccl", rank=rank, world_size=2)
group = dist.new_group([0, 1], pg_options=torch_npu._C._distributed_c10d.ProcessGroupHCCL.Options())
torch.manual_seed(rank)
model = Model().to(f"npu:{rank}").eval().requires_grad_(False)
config = CompilerConfig()
config.experimental_config.frozen_parameter = True
step = torch.compile(model.decode, backend=torchair.get_npu_backend(compiler_config=config), dynamic=False)
hidden_states = torch.ones(1, 16).npu()
second = torch.npu.Stream()
if OPERATOR == "prefill":
    torch_npu.npu_rms_norm(hidden_states, model.weight)
for _ in range(16):
    hidden_states = step(hidden_states)
    with torch.npu.stream(second):
        second.wait_stream(torch.npu.current_stream())
        dist.all_reduce(hidden_states, group=group)
    torch.npu.synchronize()
dist.destroy_process_group()

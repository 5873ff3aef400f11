"""A Llama of Hugging Face with DistributedDataParallel and bf16 autocast, as people write it."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM

dist.init_process_group("nccl")
local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
config = LlamaConfig(
    hidden_size=2048, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8,
    intermediate_size=8192, vocab_size=128256, max_position_embeddings=8192, use_cache=False,
)  # fmt: skip
model = DistributedDataParallel(LlamaForCausalLM(config).to(local), device_ids=[local])
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
for _ in range(10):
    tokens = torch.randint(0, 128256, (1, 4096)).to(local)
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

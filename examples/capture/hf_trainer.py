"""Hugging Face's Trainer (pip install transformers accelerate)."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, i):
        tokens = torch.randint(0, 50257, (512,))
        return {"input_ids": tokens, "labels": tokens}


arguments = TrainingArguments(
    output_dir="out", per_device_train_batch_size=8, max_steps=100, bf16=True, report_to=[]
)
Trainer(model=GPT2LMHeadModel(GPT2Config()), args=arguments, train_dataset=Tokens()).train()

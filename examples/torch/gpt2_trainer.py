"""Trains a small GPT-2 with Hugging Face's Trainer, which knows nothing of byteps.

    torchrun --nproc-per-node 2 examples/torch/gpt2_trainer.py

The only line for byteps is the one that names the backend. Needs `pip install transformers
accelerate`. The text is Python's own standard library; the weights start random, so nothing is
downloaded.
"""

from __future__ import annotations

import math
import tempfile

import torch
import torch.distributed as dist
from gpt2_parts import StdlibText, make_model, parse_options
from transformers import Trainer, TrainingArguments

import byteps.torch  # noqa: F401  (adds the backend)


def main() -> None:
    options = parse_options("Trains a small GPT-2 with transformers.Trainer.")
    dist.init_process_group(options.backend)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            make_model(options),
            TrainingArguments(
                output_dir=folder,
                max_steps=options.steps,
                per_device_train_batch_size=options.batch // dist.get_world_size(),
                per_device_eval_batch_size=32,
                learning_rate=2e-3,
                warmup_steps=options.steps // 10,
                logging_steps=max(1, options.steps // 10),
                save_strategy="no",
                report_to=[],
                use_cpu=True,
                seed=0,
            ),
            train_dataset=StdlibText(options.context, 0.0, 0.95),
            eval_dataset=StdlibText(options.context, 0.99, 1.0),
        )
        trainer.train()
        loss = trainer.evaluate()["eval_loss"]
    if dist.get_rank() == 0:
        bits = loss / math.log(2)
        print(f"{dist.get_world_size()} ranks, backend {dist.get_backend()}: {bits:.3f} bits a byte", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""The loop of gpt2_trainer.py written out, with Hugging Face's Accelerate.

torchrun --nproc-per-node 2 examples/torch/gpt2_accelerate.py
"""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from accelerate import Accelerator
from gpt2_parts import StdlibText, make_model, parse_options
from transformers import get_linear_schedule_with_warmup

import byteps.torch  # noqa: F401  (adds the backend)


def main() -> None:
    options = parse_options("Trains a small GPT-2 with Accelerate.")
    dist.init_process_group(options.backend)
    torch.set_num_threads(1)
    # The schedule counts steps of training; Accelerate's default counts one for each rank in each
    # of them.
    accelerator = Accelerator(cpu=True, step_scheduler_with_optimizer=False)
    model = make_model(options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = get_linear_schedule_with_warmup(optimizer, options.steps // 10, options.steps)
    batch = options.batch // dist.get_world_size()
    train = torch.utils.data.DataLoader(StdlibText(options.context, 0.0, 0.95), batch, shuffle=True)
    test = torch.utils.data.DataLoader(StdlibText(options.context, 0.99, 1.0), 32)
    model, optimizer, train, test, schedule = accelerator.prepare(model, optimizer, train, test, schedule)

    for step, pieces in zip(range(options.steps), train, strict=False):
        loss = model(**pieces).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 20 == 0:
            accelerator.print(f"step {step}: loss {loss.item():.3f}")

    losses = []
    with torch.no_grad():
        for pieces in test:
            losses.append(accelerator.gather_for_metrics(model(**pieces).loss.repeat(len(pieces["input_ids"]))))
    bits = torch.cat(losses).mean().item() / math.log(2)
    accelerator.print(f"{dist.get_world_size()} ranks, backend {dist.get_backend()}: {bits:.3f} bits a byte")
    accelerator.end_training()  # destroys the process group, too


if __name__ == "__main__":
    main()

"""The same network as in gpt2_trainer.py, trained by Lightning, whose strategy names the backend.

torchrun --nproc-per-node 2 examples/torch/gpt2_lightning.py
"""

from __future__ import annotations

import math
import os
from typing import Any

import lightning
import torch
import torch.distributed as dist
from gpt2_parts import StdlibText, make_model, parse_options
from lightning.pytorch.strategies import DDPStrategy
from transformers import GPT2LMHeadModel, get_linear_schedule_with_warmup

import byteps.torch  # noqa: F401  (adds the backend)


class LanguageModel(lightning.LightningModule):
    """GPT-2 with its optimizer and schedule of `steps` steps."""

    def __init__(self, model: GPT2LMHeadModel, steps: int) -> None:
        super().__init__()
        self.model = model
        self.steps = steps

    def training_step(self, pieces: dict[str, torch.Tensor]) -> torch.Tensor:
        loss: torch.Tensor = self.model(**pieces).loss
        self.log("loss", loss)
        return loss

    def validation_step(self, pieces: dict[str, torch.Tensor]) -> None:
        self.log("test loss", self.model(**pieces).loss, sync_dist=True)

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=2e-3)
        schedule = get_linear_schedule_with_warmup(optimizer, self.steps // 10, self.steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main() -> None:
    options = parse_options("Trains a small GPT-2 with Lightning.")
    torch.set_num_threads(1)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),  # set by torchrun
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
        strategy=DDPStrategy(process_group_backend=options.backend),
        max_steps=options.steps,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    model = LanguageModel(make_model(options), options.steps)
    batch = options.batch // trainer.world_size
    train = torch.utils.data.DataLoader(StdlibText(options.context, 0.0, 0.95), batch, shuffle=True)
    test = torch.utils.data.DataLoader(StdlibText(options.context, 0.99, 1.0), 32)
    trainer.fit(model, train)
    (measured,) = trainer.validate(model, test, verbose=False)
    if trainer.is_global_zero:
        bits = measured["test loss"] / math.log(2)
        print(f"{dist.get_world_size()} ranks, backend {dist.get_backend()}: {bits:.3f} bits a byte")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Common parts of the GPT-2 examples: options, model, and text without a download.

The text is the sources of Python's standard library, one token for each byte.
"""

from __future__ import annotations

import argparse
import sysconfig
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

VOCABULARY = 256


def parse_options(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--backend", default="byteps", help="of torch.distributed; gloo to compare")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=16, help="pieces of text of all ranks in one step")
    parser.add_argument("--context", type=int, default=128, help="bytes of a piece")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    return parser.parse_args()


def make_model(options: argparse.Namespace) -> GPT2LMHeadModel:
    """Returns a model with random weights, the same on all ranks."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=options.context,
        n_embd=options.width,
        n_layer=options.layers,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config)


class StdlibText(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Returns pieces of `context` bytes for a causal language model; the same on all ranks."""

    def __init__(self, context: int, first: float = 0.0, last: float = 1.0, limit_bytes: int = 4 << 20) -> None:
        """The part from `first` to `last` (of 1) of the first `limit_bytes` of text."""
        files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
        text = b"\n".join(path.read_bytes() for path in files)[:limit_bytes]
        part = bytearray(text[int(first * len(text)) : int(last * len(text))])
        count = len(part) // context
        self._pieces = torch.frombuffer(part, dtype=torch.uint8)[: count * context].view(count, context)

    def __len__(self) -> int:
        return len(self._pieces)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = self._pieces[index].long()
        return {"input_ids": tokens, "labels": tokens}

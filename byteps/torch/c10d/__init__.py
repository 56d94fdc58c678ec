"""The process groups of torch.distributed's backend `byteps`. Users read docs/torch-distributed.md.

`byteps.torch_plugin` registers the backend.
"""

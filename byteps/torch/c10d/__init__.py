"""The process groups of the backend `byteps` of torch.distributed, which `byteps.torch_plugin` makes known.

docs/torch-distributed.md is for users.
"""

"""Loads models of the package transformers: its `from_pretrained`, with weights streamed by tload.

>>> import tload.transformers
>>> from transformers import AutoModelForCausalLM
>>> model = tload.transformers.from_pretrained(AutoModelForCausalLM, "model_dir")

transformers processes the weights as always: it converts keys, merges experts, casts dtypes, ties
weights. Only the source differs: tload reads the requested tensors ahead and hands them over
without a copy.
"""

from tload.transformers._pretrained import from_pretrained

__all__ = ["from_pretrained"]

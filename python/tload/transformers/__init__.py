"""Loading models of the package transformers: its own `from_pretrained`, with weights that tload streams.

>>> import tload.transformers
>>> from transformers import AutoModelForCausalLM
>>> model = tload.transformers.from_pretrained(AutoModelForCausalLM, "model_dir")  # doctest: +SKIP

transformers does with the weights what it always does: keys are converted, experts merged, dtypes cast, weights tied.
It only gets them from elsewhere: what it asks for has been read ahead, and is handed over without a copy.
"""

from tload.transformers._pretrained import from_pretrained

__all__ = ["from_pretrained"]

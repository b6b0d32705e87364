"""Load plans: which elements of which tensors of a checkpoint go where in a module.

Engines copy the tensors of a checkpoint into the parameters of a module one by one, in Python.
`record` runs such a loader once, over stand-ins without data, and notes its copies. `run` fills the
parameters of the same module by that plan, without the loader, and `apply_into` changes them by a
patch. `save` and `restore` keep a plan on disk.
"""

from tload.plans.disk import refusal, restore, save, save_refusal
from tload.plans.key import headers_of, key
from tload.plans.patch import apply_into
from tload.plans.plan import Fill, Place, Plan, RefusedError, Source
from tload.plans.record import record
from tload.plans.run import run

__all__ = [
    "Fill",
    "Place",
    "Plan",
    "RefusedError",
    "Source",
    "apply_into",
    "headers_of",
    "key",
    "record",
    "refusal",
    "restore",
    "run",
    "save",
    "save_refusal",
]

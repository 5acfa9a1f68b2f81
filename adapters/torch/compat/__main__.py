"""`python -m perseus_like.torch.compat`: says which private parts of the installed torch are not as expected."""

import sys

import torch

from .probes import PROBES, changed

found = changed()
for name, text in found.items():
    print(f"{name}: {text}")
print(f"torch {torch.__version__}: {len(PROBES) - len(found)} of {len(PROBES)} private parts are as expected")
sys.exit(1 if found else 0)

"""torch.distributed over perseus_like: importing this makes the backend `perseus` known.

Where perseus_like is installed, `import torch` has done so already.
"""

from .autoload import register

__all__ = ["register"]

register()

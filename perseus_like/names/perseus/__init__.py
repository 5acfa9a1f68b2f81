"""The import alias `perseus` with AIACC-Training's names: `import perseus.torch.horovod as hvd`."""

from perseus_like import __version__
from perseus_like.names import install_alias

install_alias("perseus")

__all__ = ["__version__"]

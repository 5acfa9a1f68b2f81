"""The collectives of torch tensors, by the verbs that all adapters have."""

from __future__ import annotations

import torch

from perseus_like.collectives import Collectives

from .tensors import tensors

collectives: Collectives[torch.Tensor] = Collectives(tensors)

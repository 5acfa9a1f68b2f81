"""ResNet-50 as it is trained everywhere, without torchvision."""

from __future__ import annotations

import torch
from torch import nn


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False), nn.BatchNorm2d(outputs)
    )


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, narrow: int, stride: int) -> None:
        super().__init__()
        wide = 4 * narrow
        self.main = nn.Sequential(
            *(_convolution(inputs, narrow, 1), nn.ReLU(inplace=True)),
            *(_convolution(narrow, narrow, 3, stride), nn.ReLU(inplace=True)),
            _convolution(narrow, wide, 1),
        )
        same = stride == 1 and inputs == wide
        self.beside = nn.Identity() if same else _convolution(inputs, wide, 1, stride)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.main(images) + self.beside(images))


def resnet50(classes: int = 1000) -> nn.Sequential:
    """ResNet-50 of He et al., 2016, arXiv:1512.03385. It has 161 parameters with 25,557,032 elements."""
    layers: list[nn.Module] = [_convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        narrow = 64 << stage
        for block in range(blocks):
            layers.append(Bottleneck(inputs, narrow, 2 if stage > 0 and block == 0 else 1))
            inputs = 4 * narrow
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))

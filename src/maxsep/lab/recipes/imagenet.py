"""Table on ImageNet and ImageNet-LT: ResNet-50 and ResNet-152, top-1 and top-5.

The paper says no more than SGD, a cosine schedule, rate 0.1, momentum 0.9 and weight decay 5e-4, and no code was
released. Decided here, after what others do with these data:

- 90 epochs of batches of 256, crops of random area and shape with flips, for ImageNet-LT with colour jitter too.
- Radius 1.
- Pictures are kept as squares of 224 pixels, from which crops are taken, and are tested whole. Others crop from the
  whole picture, and test the inner 224 of 256 pixels.
"""

from __future__ import annotations

from maxsep.lab.recipes.cifar import PAIR, SGD, seeds
from maxsep.lab.recipes.recipe import Block, Recipe

_SHARED = SGD.replace(normalisation="imagenet", epochs=90, batch_size=256)
_AUGMENTATION = {"imagenet_lt": "resized_crop_flip_jitter", "imagenet": "resized_crop_flip"}

IMAGENET = Recipe(
    name="imagenet",
    about="Table on ImageNet: does the matrix help with a thousand classes of photographs?",
    blocks=(
        Block(
            settings=tuple(
                _SHARED.replace(dataset=dataset, network=network, augmentation=augmentation)
                for network in ("resnet50", "resnet152")
                for dataset, augmentation in _AUGMENTATION.items()
            ),
            arms=PAIR,
        ),
    ),
    seeds=seeds(3),
)

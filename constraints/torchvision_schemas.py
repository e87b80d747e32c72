"""Make a torchvision built for CUDA importable with a CPU torch; `make setup` installs this into the environment.

Such a torchvision cannot load its compiled operators, and its import fails because it registers fake versions of two of
them. Their schemas are defined first, unless the operators were loaded: to define them twice aborts the interpreter.
Models and transforms written in Python then work; the compiled operators stay unavailable.
"""

import sys


class _DefineSchemas:
    """A finder that finds nothing: it runs before the usual ones import a module."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "torchvision._meta_registrations":
            import torch
            from torchvision.extension import _has_ops

            if not _has_ops():
                self.library = torch.library.Library("torchvision", "FRAGMENT")
                for operator in ("nms", "qnms"):
                    self.library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


sys.meta_path.insert(0, _DefineSchemas())

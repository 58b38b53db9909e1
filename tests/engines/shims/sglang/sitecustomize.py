"""Declares two operators of torchvision just before torchvision is first imported.

The plain wheel of torchvision is a CUDA build whose compiled operators cannot load beside a CPU build of torch. Its
Python registers shapes for them at import, which fails when they are not declared; its transforms do not need them.
Python imports this module by itself at start-up, so it must stay cheap: torch is imported only when somebody asks for
torchvision.
"""

import sys


class DeclareFirst:
    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            library = torch.library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                library.define(operator + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            torch._tauscope_torchvision = library  # the declaration ends with the object


sys.meta_path.insert(0, DeclareFirst())

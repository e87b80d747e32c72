"""Let transformers models with heads be saved as plain ones, and load plain weights while they train."""

import copy
from functools import partial
from typing import Any

from torch import Tensor, nn

from maxsep.heads import MaxSeparationHead
from maxsep.heads.base import linear_from
from maxsep.surgery.locate import find_heads


def fold_on_save(model: nn.Module) -> None:
    """Make `save_pretrained` of a transformers model write folded weights, and `load_state_dict` accept them.

    `from_pretrained` builds a model without a head: given the head's C-1 rows, it would draw a random classifier.
    """
    for module in model.modules():
        if hasattr(module, "base_model_prefix") and hasattr(module, "save_pretrained") and find_heads(module):
            undo_fold_on_save(module)
            module.save_pretrained = partial(_save_folded, module)  # type: ignore[assignment]  # partials can be pickled
            module.register_load_state_dict_pre_hook(_accept_plain)  # type: ignore[no-untyped-call]  # torch's is not


def undo_fold_on_save(module: nn.Module) -> None:
    """Remove what `fold_on_save` added to one module."""
    if getattr(vars(module).get("save_pretrained"), "func", None) is _save_folded:
        del module.save_pretrained
    hooks = module._load_state_dict_pre_hooks
    for key in [key for key, hook in hooks.items() if getattr(hook, "hook", None) is _accept_plain]:
        del hooks[key]


def _save_folded(
    model: Any, save_directory: Any, is_main_process: bool = True, state_dict: Any = None, **options: Any
) -> None:
    """Call the model's own `save_pretrained` with the plain layer's weights in the place of the head's."""
    state = dict(model.state_dict() if state_dict is None else state_dict)
    for path, head in find_heads(model):
        names = [name for name in state if name.startswith(f"{path}.")]
        if names:  # a state dict of adapters has none
            filled = copy.deepcopy(head)
            filled.load_state_dict({name.removeprefix(f"{path}."): state.pop(name) for name in names})
            plain = filled.folded()
            if not isinstance(plain, nn.Linear):
                raise ValueError(f"from_pretrained cannot load {head} at {path!r}: use maxsep.save")
            state |= {f"{path}.{name}": value for name, value in plain.state_dict().items()}
    type(model).save_pretrained(model, save_directory, is_main_process, state, **options)


def _accept_plain(model: nn.Module, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
    """Convert the weights of plain classifiers in a state dict to those of the model's heads, in place."""
    for path, head in find_heads(model):
        where = f"{prefix}{path}."
        weight = state_dict.get(f"{where}weight")
        if not isinstance(head, MaxSeparationHead) or weight is None or f"{where}_extra_state" in state_dict:
            continue
        if weight.shape == (head.num_classes, head.in_features):
            plain = linear_from(weight, state_dict.get(f"{where}bias"))
            converted = MaxSeparationHead.from_linear(plain, head.radius, class_order=head.class_order)
            state_dict.update({where + name: value for name, value in converted.state_dict().items()})

"""Walk, change and unwrap the tree of modules that a model is."""

from __future__ import annotations

from torch import nn

__all__ = ["join", "refuse_wrapped", "submodule", "swap", "unwrap"]


def submodule(model: nn.Module, path: str) -> nn.Module | None:
    """Return the module at a path, None where there is none.

    >>> submodule(nn.Sequential(nn.ReLU()), "0"), submodule(nn.ReLU(), "fc")
    (ReLU(), None)
    """
    return dict(model.named_modules(remove_duplicate=False)).get(path)


def swap(model: nn.Module, path: str, new: nn.Module) -> None:
    """Put a module at a path that exists.

    >>> model = nn.Sequential(nn.ReLU())
    >>> swap(model, "0", nn.GELU())
    >>> model[0]
    GELU(approximate='none')
    """
    parent, _, name = path.rpartition(".")
    owner = submodule(model, parent)
    assert owner is not None, path
    setattr(owner, name, new)


def unwrap(model: nn.Module) -> nn.Module:
    """Return the module inside DDP, DataParallel or torch.compile wrappers.

    >>> unwrap(nn.DataParallel(nn.ReLU()))
    ReLU()
    """
    while (inner := _inner(model)) is not None:
        model = inner
    return model


def refuse_wrapped(model: nn.Module) -> None:
    """Raise if changing the model in place would go behind a wrapper's back.

    >>> refuse_wrapped(nn.ReLU())
    """
    inner = _inner(model)
    if inner is not None:
        raise ValueError(
            f"the model is wrapped in {type(model).__name__}, which keeps its own record of parameters and code. "
            f"Change the {type(inner).__name__} inside first, then wrap it."
        )


def join(prefix: str, name: str) -> str:
    """Join two parts of a path, either of which may be empty.

    >>> join("head", "fc"), join("", "fc")
    ('head.fc', 'fc')
    """
    return f"{prefix}.{name}" if prefix and name else prefix or name


def _inner(model: nn.Module) -> nn.Module | None:
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        module = model.module
        return module if isinstance(module, nn.Module) else None
    inner = model._modules.get("_orig_mod")  # what torch.compile(model) returns
    return inner if type(model).__name__ == "OptimizedModule" else None

"""Nothing here is compiled, so torch's compiler is not imported: that takes 2 s and 70 MB of every process that trains.

What torch marks as not to be compiled imports the compiler when it is first called, only to be told to leave it alone, and is then kept under a
name of the plain function. The plain function is put there at once; a torch that has another name for it imports its compiler, and works as well.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch


def mark_methods_uncompiled(cls: type) -> None:
    """Let the methods of a class of torch's be called without the compiler."""
    for method in vars(cls).values():
        plain = getattr(method, "__wrapped__", None)
        if plain is not None:
            vars(plain).setdefault("__dynamo_disable", plain)


def uncompiled_step(optimizer: type[torch.optim.Optimizer]) -> Callable[..., Any]:
    """The step of an optimizer of torch's that keeps no gradient of itself, without what it says to the compiler before and after."""
    step: Callable[..., Any] = torch.no_grad()(inspect.unwrap(optimizer.step))
    return step

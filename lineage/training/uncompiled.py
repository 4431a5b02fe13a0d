"""Keep torch's compiler from being imported: that costs every training process 2 s and 70 MB.

Nothing here is compiled. But what torch excludes from compilation imports the compiler at its first
call, and is then kept as an attribute of the plain function. This module sets that attribute in
advance. If a later torch names it differently, everything still works.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch


def mark_methods_uncompiled(cls: type) -> None:
    """Let the methods of one of torch's classes be called without the compiler."""
    for method in vars(cls).values():
        plain = getattr(method, "__wrapped__", None)
        if plain is not None:
            vars(plain).setdefault("__dynamo_disable", plain)


def uncompiled_step(optimizer: type[torch.optim.Optimizer]) -> Callable[..., Any]:
    """Return the step of a torch optimizer, for use without gradients, without compiler calls."""
    step: Callable[..., Any] = torch.no_grad()(inspect.unwrap(optimizer.step))
    return step

"""Imports that wait until they are needed, so that commands begin sooner.

PyTorch takes two seconds, and the flags of a task need none of it, although its terms do, whose
modules therefore import `torch` from here. ``torch._dynamo``, which tensordict imports and which
only ``torch.compile`` needs, takes as long, and W&B, which rsl_rl imports, another half.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType
from typing import TYPE_CHECKING, Any


class _LazyModule(ModuleType):
    """Stands for a module, and imports it when something of it is first used."""

    def __getattr__(self, name: str) -> Any:
        module = import_module(self.__name__)
        vars(self).update(vars(module))  # found without this function from now on
        return getattr(module, name)


if TYPE_CHECKING:
    import torch as torch
else:
    torch = _LazyModule("torch")

_MARKS = ("allow_in_graph", "assume_constant_result")  # of `torch.compiler`


def put_off_imports() -> None:
    """From now on, import W&B and ``torch._dynamo`` when something of them is used."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    def __init__(self) -> None:
        self.marked: list[tuple[str, Any]] = []  # functions that tensordict marks for dynamo
        self.loaders: dict[str, Callable[[Loader], Loader]] = {
            "wandb": LazyLoader,
            "tensordict": lambda loader: _LoaderWithin(loader, self._marks_noted),
            "torch._dynamo": lambda loader: _LoaderWithin(loader, self._marks_made),
        }

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's spec with another loader; None for most, which others find."""
        spec = PathFinder.find_spec(name, path, target) if name in self.loaders else None
        if spec is not None and spec.loader is not None:
            spec.loader = self.loaders[name](spec.loader)
        return spec

    @contextmanager
    def _marks_noted(self) -> Iterator[None]:
        """Within, what marks a function for dynamo notes it, instead of importing dynamo."""
        import torch.compiler

        def note(name: str, function: Any) -> Any:
            self.marked.append((name, function))
            return function

        real = {name: getattr(torch.compiler, name) for name in _MARKS}
        vars(torch.compiler).update({name: partial(note, name) for name in _MARKS})
        try:
            yield
        finally:
            vars(torch.compiler).update(real)

    @contextmanager
    def _marks_made(self) -> Iterator[None]:
        """Mark what was noted, once dynamo is imported."""
        yield
        import torch.compiler

        for name, function in self.marked:
            getattr(torch.compiler, name)(function)


class _LoaderWithin(Loader):
    """Loads as `loader` does, within a context."""

    def __init__(self, loader: Loader, context: Callable[[], Any]) -> None:
        self.loader, self.context = loader, context

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The module that the loader makes."""
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module."""
        with self.context():
            self.loader.exec_module(module)

"""Imports that commands put off until they need them, so that they begin sooner.

PyTorch takes two seconds, and a list of flags needs none of it, although the terms of a task import
it. As long takes ``torch._dynamo``, which only ``torch.compile`` needs, but tensordict imports.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType
from typing import Any

_WHEN_USED = ("torch", "wandb")
_MARKS = ("allow_in_graph", "assume_constant_result")  # of `torch.compiler`


def put_off_imports() -> None:
    """From now on, import packages that take long when something of them is used."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    def __init__(self) -> None:
        self.marked: list[tuple[str, Any]] = []  # functions that tensordict marks for dynamo

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in (*_WHEN_USED, "tensordict", "torch._dynamo"):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            if name in _WHEN_USED:
                spec.loader = LazyLoader(spec.loader)
            else:
                around = self._marks_noted if name == "tensordict" else self._marks_made
                spec.loader = _LoaderWithin(spec.loader, around)
        return spec

    @contextmanager
    def _marks_noted(self) -> Iterator[None]:
        """Within, what marks a function for dynamo notes it, instead of importing dynamo."""
        import torch.compiler

        real = {name: getattr(torch.compiler, name) for name in _MARKS}
        for name in _MARKS:
            setattr(torch.compiler, name, self._noting(name))
        try:
            yield
        finally:
            for name, function in real.items():
                setattr(torch.compiler, name, function)

    def _noting(self, name: str) -> Callable[[Any], Any]:
        def note(function: Any) -> Any:
            self.marked.append((name, function))
            return function

        return note

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
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        with self.context():
            self.loader.exec_module(module)

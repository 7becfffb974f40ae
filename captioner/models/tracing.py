"""Cutting a network with torch.fx while other threads use networks of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torchvision.models import feature_extraction

_TRACING = threading.Lock()


class OneThreadTracer(feature_extraction.NodePathTracer):  # type: ignore[misc]  # untyped
    """torchvision's tracer, for the calls of the thread that made it alone.

    While torch.fx traces, every call of every module in the process comes to the tracer; a model
    that captions in another thread at that time would fail.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._thread = threading.get_ident()

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Trace the call, or leave it alone."""
        if threading.get_ident() != self._thread:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """Trace the access to a parameter, or leave it alone."""
        if threading.get_ident() != self._thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)


@contextmanager
def tracing_one_thread() -> Iterator[None]:
    """Have torchvision's and timm's feature extractors trace the calls of this thread alone."""
    with _TRACING:
        general = feature_extraction.NodePathTracer
        feature_extraction.NodePathTracer = OneThreadTracer
        try:
            yield
        finally:
            feature_extraction.NodePathTracer = general

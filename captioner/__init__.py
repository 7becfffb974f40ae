"""Image captioning that shows what it looked at.

>>> from captioner import Captioner  # quick: no weights are read before ``load``
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from captioner.inference.captioner import Captioner
    from captioner.types import CaptionResult

__all__ = ["CaptionResult", "Captioner", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "Captioner":
        from captioner.inference.captioner import Captioner

        return Captioner
    if name == "CaptionResult":
        from captioner.types import CaptionResult

        return CaptionResult
    raise AttributeError(f"module 'captioner' has no attribute {name!r}")

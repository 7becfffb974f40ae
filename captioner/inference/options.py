"""A model's own decoding options, with those replaced that a caller sets."""

from __future__ import annotations

import dataclasses
from typing import Any

from captioner.decoding import DecodingOptions

_SAMPLING = {"temperature": 1.0, "top_k": None, "top_p": None}


def override_options(base: DecodingOptions, **options: Any) -> DecodingOptions:
    """Decoding options with some of them replaced.

    ``beam_size`` asks for beam search where no method is named. Options that only sampling has
    do not outlive a change to another method.

    Args:
        base: The options of the model.
        **options: Fields of ``DecodingOptions``.

    Raises:
        ValueError: An option is unknown or out of range, or two contradict each other.

    >>> override_options(DecodingOptions(method="greedy"), beam_size=3).method
    'beam'
    """
    known = [field.name for field in dataclasses.fields(DecodingOptions)]
    unknown = [name for name in options if name not in known]
    if unknown:
        raise ValueError(f"unknown decoding option {unknown[0]!r}; there are {', '.join(known)}")
    if "method" not in options and "beam_size" in options:
        options["method"] = "beam"
    if base.method == "sample" and options.get("method", "sample") != "sample":
        options = {**_SAMPLING, **options}
    return dataclasses.replace(base, **options)

"""What ``captioner data`` needs of a run's configuration: its data and its encoder, no more."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from jsonargparse import ArgumentParser

from captioner.data.datamodule import CaptionDataModule
from captioner.inference.checkpoint import load_model
from captioner.training.cli import CaptioningCLI

if TYPE_CHECKING:
    from captioner.models.encoder import CnnEncoder


class DataCLI(CaptioningCLI):
    """Parse the options of ``captioner fit`` and build the data module alone."""

    def instantiate_classes(self) -> None:
        """Build the data module; neither model nor trainer, and no folder for a run."""
        parser = ArgumentParser()
        parser.add_class_arguments(CaptionDataModule, "data")
        options = self.config["fit"]
        only_data = {"data": options["data"].as_dict()}
        # Before jsonargparse 4.49 it was called instantiate_classes.
        instantiate = getattr(parser, "instantiate", None) or parser.instantiate_classes
        self.datamodule = instantiate(parser.parse_object(only_data))["data"]

    def _set_seed(self) -> None:
        """Nothing here is random."""

    def _run_subcommand(self, subcommand: str) -> None:
        """Nothing is run."""

    def build_encoder(self) -> CnnEncoder | None:
        """The encoder of the options, or of the model that they start from; None without one."""
        options = self.config["fit"]
        source = options.get("ckpt_path") or options["model"]["initial_weights"]
        if source is not None:
            return cast("CnnEncoder", load_model(source).encoder)
        spec = options["model"]["encoder"]
        if spec is None:
            return None
        module, _, name = str(spec["class_path"]).rpartition(".")
        encoder_class = getattr(importlib.import_module(module), name)
        init_args = spec.get("init_args")
        return cast(
            "CnnEncoder", encoder_class() if init_args is None else encoder_class(**init_args)
        )


def parse_data(
    args: Sequence[str], *, need_encoder: bool = True
) -> tuple[CaptionDataModule, CnnEncoder | None]:
    """The data module and the encoder that configuration files and flags describe.

    Args:
        args: Options as ``captioner fit`` takes them, such as ``["-c", "configs/base.yaml"]``.
        need_encoder: Whether the encoder is built, which reads its weights.

    Returns:
        The data module, not set up yet, and the encoder; None where it is not needed.

    Raises:
        ValueError: An encoder is needed and none is named.
        SystemExit: The options are wrong; the message is on stderr.
    """
    cli = DataCLI(["fit", *args])
    if not need_encoder:
        return cli.datamodule, None
    encoder = cli.build_encoder()
    if encoder is None:
        raise ValueError(
            "no encoder: name one (-c configs/model/sat.yaml), or a model that has one "
            "(--model.initial_weights NAME)"
        )
    return cli.datamodule, encoder

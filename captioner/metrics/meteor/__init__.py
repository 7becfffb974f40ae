"""METEOR 1.5 without Java."""

from captioner.metrics.meteor.resources import Resources, load_resources, meteor_unavailable
from captioner.metrics.meteor.scorer import meteor

__all__ = ["Resources", "load_resources", "meteor", "meteor_unavailable"]

"""From a picture to its caption and maps, with a model that was trained before."""

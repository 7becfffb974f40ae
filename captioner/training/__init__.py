"""Training: the Lightning module, its callbacks, runs on disk and the command line."""

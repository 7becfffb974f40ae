"""Encoders, attention and decoders."""

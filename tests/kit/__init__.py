"""Tiny real models, free ports and other things that several test packages need."""

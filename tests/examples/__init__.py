"""Tests of what is under examples/."""

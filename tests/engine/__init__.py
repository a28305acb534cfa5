"""Tests of the engine: on a virtual clock, against the real store and the real machine."""

"""Tests of what people and programs touch."""

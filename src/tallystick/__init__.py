"""Tallystick: a durable workflow engine that never repeats what it cannot account for."""

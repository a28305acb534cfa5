"""Whole processes, killed where it hurts, and judged from outside."""

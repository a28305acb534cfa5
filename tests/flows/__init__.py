"""Flows and tasks that the crash tests, the power-loss tests and the bench run."""

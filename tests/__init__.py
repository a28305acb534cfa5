"""The tests of Tallystick; `pytest` finds them, `import-linter` and each other import them."""

"""Situations that people met with other tools, replayed here: a file each, by letter and number."""

"""Generating, judging and shrinking: one surface of one target, then campaigns over them."""

"""Consumers of the engine's events and reports: console, JSON, pictures of mixes."""

"""Targets: planners under test, loaded and put behind one interface.

Only this package ever sees an object of vLLM's.
"""

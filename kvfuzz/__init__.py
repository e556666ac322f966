"""kvfuzz: property-based verification and fuzzing of KV-cache planners.

Importing this package imports neither torch nor Hypothesis; the parts that
need them import them themselves.
"""

__version__ = "0.1.0"

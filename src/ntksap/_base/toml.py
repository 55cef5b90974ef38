"""TOML is read by the standard library; on Python 3.10 by its twin, which only the lab has, so import it late."""

import sys

if sys.version_info >= (3, 11):
    from tomllib import TOMLDecodeError, loads
else:
    from tomli import TOMLDecodeError, loads

__all__ = ["TOMLDecodeError", "loads"]

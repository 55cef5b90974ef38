"""``python -m ntksap`` is the ``ntksap`` command."""

import sys

from ntksap.cli import main

if __name__ == "__main__":
    sys.exit(main())

"""`python -m wal check|dump|stats|repair DIR`."""

import sys

from wal.dump import main

if __name__ == "__main__":
    sys.exit(main())

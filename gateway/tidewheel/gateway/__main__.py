"""``python -m tidewheel.gateway``."""

import sys

from tidewheel.gateway.program import main

if __name__ == "__main__":
    sys.exit(main())

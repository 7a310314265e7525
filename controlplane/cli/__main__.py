"""python -m controlplane.cli"""

import sys

from controlplane.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

"""python -m analysis.paper [--check]"""

import sys

from analysis.paper.numbers import main

if __name__ == "__main__":
    sys.exit(main())

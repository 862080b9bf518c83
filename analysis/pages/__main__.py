"""python -m analysis.pages [--check]"""

import sys

from analysis.pages.blocks import main

if __name__ == "__main__":
    sys.exit(main())

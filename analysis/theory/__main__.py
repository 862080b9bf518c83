"""python -m analysis.theory [--check]"""

import sys

from analysis.theory.page import main

if __name__ == "__main__":
    sys.exit(main())

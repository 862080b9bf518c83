"""python -m analysis.toy_study [--check]"""

import sys

from analysis.toy_study.page import main

if __name__ == "__main__":
    sys.exit(main())

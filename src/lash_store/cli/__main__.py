"""`python -m lash_store.cli` is `lash-store`."""

import sys

from lash_store.cli import main

sys.exit(main())

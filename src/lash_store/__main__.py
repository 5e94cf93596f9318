"""`python -m lash_store` is `lash-store`."""

import sys

from lash_store.cli import main

sys.exit(main())

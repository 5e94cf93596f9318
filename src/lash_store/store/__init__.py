"""The stores: facades over operations, one file per noun. The sync ones in `_sync` are generated from these."""

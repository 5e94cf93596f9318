"""The domain: operations as generators, one file per noun. No input or output, no engine, no clock but the database's."""

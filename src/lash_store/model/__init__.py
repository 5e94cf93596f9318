"""The nouns of the store as frozen values. One file per noun."""

"""What users would pick instead. One file each, run in an environment of its own; see the README of `bench`."""

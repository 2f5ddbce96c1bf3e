"""The same scenes in front of every engine that can be had as a package: `make e2e-engines`."""

"""Support for the tests of several rooms: servers, fleets, plugins of pytest."""

"""The cases, by topic; importing a module registers its cases."""

from . import consumers, protocol, publish, reads, sdk, streams  # noqa: F401

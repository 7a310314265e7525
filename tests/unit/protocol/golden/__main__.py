"""Write the schema of the newest revision."""

from controlplane.protocol.frames import PROTOCOL_MAX
from tests.unit.protocol.golden import write

write(PROTOCOL_MAX)

"""The tests. What they make the package say is recorded, which must begin before anything of it is imported."""

import sys

from tests import messages

# Other processes that use these modules, under strace for one, are left as they are.
if "pytest" in sys.modules:
    messages.install()

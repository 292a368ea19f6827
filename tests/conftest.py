"""What all tests share: property tests are never judged by the clock, since the machine is shared."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile("local", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# In CI, hypothesis loads its own profile "ci": no deadline, the same examples each time.
if "CI" not in os.environ:
    settings.load_profile("local")

"""What all tests share: in CI hypothesis draws the same cases for the same code every time, so that
a submission is judged by its change and not by luck; elsewhere it goes on looking for new ones.
Nowhere is a case judged by the clock.
"""

import os

from hypothesis import HealthCheck, settings

NO_CLOCK = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("here", NO_CLOCK)
settings.register_profile("ci", NO_CLOCK, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")

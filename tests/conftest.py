"""What all tests share: in CI hypothesis draws the same cases for the same code every time, so that
a submission is judged by its change and not by luck; elsewhere it goes on looking for new ones.
Nowhere is a case judged by the clock.
"""

import os

from hypothesis import settings

settings.register_profile("here", deadline=None)
settings.register_profile("ci", derandomize=True, deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "here")

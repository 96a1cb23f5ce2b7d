"""Every test here runs without a display and without weights."""

import os

os.environ["SDL_VIDEODRIVER"] = "dummy"

"""What a person sees: the window, the keys, the recording. The only place that imports pygame."""

import os

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # stdout is for what the player asked for

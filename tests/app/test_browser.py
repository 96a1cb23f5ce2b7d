"""The page in a real browser: keys typed there change the dream, and let go when it loses them."""

import subprocess
import sys

import pytest
from fake_world import FakeWorld
from test_dreamer import PATIENCE, eventually
from test_serve import holding, served

pytestmark = pytest.mark.system
NEEDED = "needs a browser: pip install PyQt6-WebEngine"
pytest.importorskip("PyQt6.QtWebEngineWidgets", reason=NEEDED, exc_type=ImportError)

# A browser of its own process, told on stdin what is typed: `down CODE LETTER`, `up CODE LETTER`, `blur`.
BROWSER = """
import os, sys
os.environ.update(QT_QPA_PLATFORM="offscreen", QTWEBENGINE_DISABLE_SANDBOX="1",
                  QTWEBENGINE_CHROMIUM_FLAGS="--disable-gpu")
from PyQt6.QtCore import QEvent, QSocketNotifier, Qt, QUrl
from PyQt6.QtGui import QKeyEvent
from PyQt6.QtWebEngineWidgets import QWebEngineView
from PyQt6.QtWidgets import QApplication

application = QApplication(["browser"])
view = QWebEngineView()
view.load(QUrl(sys.argv[1]))
view.show()

def type_line():
    word, *rest = sys.stdin.readline().split()
    if word == "blur":
        return view.page().runJavaScript("dispatchEvent(new Event('blur'))")
    kind = QEvent.Type.KeyPress if word == "down" else QEvent.Type.KeyRelease
    event = QKeyEvent(kind, int(rest[0]), Qt.KeyboardModifier.NoModifier, rest[1] if rest[1:] else "")
    QApplication.sendEvent(view.focusProxy() or view, event)

listening = QSocketNotifier(0, QSocketNotifier.Type.Read)
listening.activated.connect(type_line)
application.exec()
"""
LEFT = 0x01000012


def test_keys_typed_into_the_page_change_the_dream_until_it_loses_the_focus(tmp_path):
    world = FakeWorld(seconds=0.01)
    with served(tmp_path, world) as site:
        command = [sys.executable, "-c", BROWSER, site.address]
        pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True, "bufsize": 1}
        with subprocess.Popen(command, **pipes) as process:
            assert process.stdin is not None
            try:
                eventually(lambda: len(world.steps) > 5)  # the page has come, and plays
                process.stdin.write(f"down {ord('W')} w\n")
                eventually(lambda: holding(world) == ("forward",))
                process.stdin.write(f"down {LEFT}\n")
                eventually(lambda: holding(world) == ("forward", "turn_left"))
                process.stdin.write(f"up {ord('W')} w\n")
                eventually(lambda: holding(world) == ("turn_left",))
                process.stdin.write("blur\n")
                eventually(lambda: holding(world) == ())
            finally:
                process.kill()
                process.wait(PATIENCE)
        eventually(lambda: site.dreamer.state == "paused")

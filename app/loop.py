"""The frame loop: listen, dream, show, remember. The same one with a window and without."""

from typing import Protocol

from .dreamer import Dreamer
from .frame import Frame
from .gif import LastSeconds
from .meter import Meter
from .players import Player
from .record import Recorder


class Stage(Protocol):
    """Where frames are shown and wishes come from: a window, a browser, or a terminal."""

    player: str  # who plays at first
    controller: Player
    rewinds: bool  # whether it may be asked to go back in time
    patience: float  # seconds a lap may wait for a frame
    forgiving: bool  # whether play goes on when a recording fails
    lingers: bool  # whether it shows why a dream has failed until somebody has read it

    def attach(self, dreamer: Dreamer, meter: Meter, recorder: Recorder, lately: LastSeconds) -> None: ...
    def listen(self) -> list[str]: ...
    def show(self, frame: Frame | None) -> None: ...
    def tell(self, line: str) -> None: ...
    def close(self) -> None: ...


def play(stage: Stage, dreamer: Dreamer, recorder: Recorder) -> None:
    """One lap per frame, or per moment without one. Ends with the dreamer, or when someone wants to quit."""
    told = None
    while True:
        over = dreamer.done  # asked first, so that the last frame is still shown
        for wish in stage.listen():
            if wish == "quit":
                return
            grant(wish, dreamer, recorder)
        frame = dreamer.frames.take(stage.patience)  # dreamt elsewhere, meanwhile, and remembered there too
        stage.show(frame)
        lingers = stage.lingers and dreamer.error is not None
        if not lingers:
            dreamer.check()
        while dreamer.notices:
            stage.tell(dreamer.notices.popleft())
        if recorder.error is not None and recorder.error is not told:
            if not stage.forgiving:
                recorder.check()
            told = recorder.error
            stage.tell(str(told))
        if over and not lingers:
            return


def grant(wish: str, dreamer: Dreamer, recorder: Recorder) -> None:
    """Pass a wish on to whom it concerns. Those about the picture on screen were the stage's own."""
    match wish:
        case "pause":
            dreamer.pause(not dreamer.paused)
        case "hold still":
            dreamer.pause()
        case "go on":
            dreamer.pause(False)
        case "step":
            dreamer.single_step()
        case "reset":
            dreamer.reset()
        case "next world":
            dreamer.next_world()
        case _ if wish.startswith("say "):
            dreamer.say(wish.removeprefix("say "))
        case "memory":
            dreamer.switch_memory()
        case "compare":
            dreamer.compare()
        case "real":
            dreamer.show_real()
        case "rewind":
            dreamer.rewind()
        case "let go":
            dreamer.let_go()
        case "branch":
            dreamer.branch()
        case "save":
            dreamer.save()
        case "load":
            dreamer.load()
        case "record":
            recorder.stop() if recorder.rolling else recorder.start()

"""A gamepad as another keyboard: a stick held is a key held, so all that is true of keys is true of it.

left stick, cross    walk, step aside; choose in the menu      A    fire; take what is chosen
right stick          turn                                      B    use, open
right trigger        fire                                      X Y  both takes, next world
left shoulder        hold to rewind                            Start, Back    menu, help
right shoulder       run
"""

import pygame
from pygame._sdl2 import controller  # SDL's own layout: pads differ, this one names the same on all

FULL = 32768  # of an axis
TILTED, UPRIGHT = 0.45, 0.3  # of it: a stick presses its key beyond the one and lets go within the other

AXES = {
    (pygame.CONTROLLER_AXIS_LEFTX, -1): "strafe_left",
    (pygame.CONTROLLER_AXIS_LEFTX, 1): "strafe_right",
    (pygame.CONTROLLER_AXIS_LEFTY, -1): "forward",
    (pygame.CONTROLLER_AXIS_LEFTY, 1): "back",
    (pygame.CONTROLLER_AXIS_RIGHTX, -1): "turn_left",
    (pygame.CONTROLLER_AXIS_RIGHTX, 1): "turn_right",
    (pygame.CONTROLLER_AXIS_TRIGGERRIGHT, 1): "fire",
}
BUTTONS = {
    pygame.CONTROLLER_BUTTON_A: "fire",
    pygame.CONTROLLER_BUTTON_B: "use",
    pygame.CONTROLLER_BUTTON_X: "branch",
    pygame.CONTROLLER_BUTTON_Y: "next world",
    pygame.CONTROLLER_BUTTON_LEFTSHOULDER: "rewind",
    pygame.CONTROLLER_BUTTON_RIGHTSHOULDER: "run",
    pygame.CONTROLLER_BUTTON_START: "menu",
    pygame.CONTROLLER_BUTTON_BACK: "help",
    pygame.CONTROLLER_BUTTON_DPAD_UP: "forward",
    pygame.CONTROLLER_BUTTON_DPAD_DOWN: "back",
    pygame.CONTROLLER_BUTTON_DPAD_LEFT: "strafe_left",
    pygame.CONTROLLER_BUTTON_DPAD_RIGHT: "strafe_right",
}


def code(control: int | tuple[int, int]) -> int:
    """A stick's way or a button as the code of a key that is on no keyboard: those are positive."""
    return -1 - control if isinstance(control, int) else -100 - 2 * control[0] - (control[1] > 0)


PAD = {code(control): does for control, does in [*AXES.items(), *BUTTONS.items()]}
START = code(pygame.CONTROLLER_BUTTON_START)


class Gamepad:
    """Turns the events of every gamepad that is plugged in, now or later, into those of keys."""

    def __init__(self) -> None:
        controller.init()
        self._open: dict[int, controller.Controller] = {}  # a pad is heard as long as somebody holds it
        self._tilted: set[tuple[int, int]] = set()

    def translate(self, event: pygame.Event) -> list[pygame.Event]:
        """The events of keys that this one stands for; any other stands for itself."""
        match event.type:
            case pygame.CONTROLLERDEVICEADDED:
                pad = controller.Controller(event.device_index)
                self._open[pad.id] = pad
            case pygame.CONTROLLERDEVICEREMOVED:
                self._open.pop(event.instance_id, None)
                return self._upright()
            case pygame.CONTROLLERAXISMOTION:
                return self._axis(event.axis, event.value / FULL)
            case pygame.CONTROLLERBUTTONDOWN | pygame.CONTROLLERBUTTONUP if event.button in BUTTONS:
                return [key(code(event.button), event.type == pygame.CONTROLLERBUTTONDOWN)]
            case _:
                return [event]
        return []

    def _axis(self, axis: int, tilt: float) -> list[pygame.Event]:
        events = []
        for side in (-1, 1):
            way = axis, side
            if way not in AXES or UPRIGHT < side * tilt < TILTED:
                continue
            down = side * tilt >= TILTED
            if down != (way in self._tilted):
                self._tilted ^= {way}
                events.append(key(code(way), down))
        return events

    def _upright(self) -> list[pygame.Event]:
        """Every stick lets go: its pad was unplugged."""
        tilted, self._tilted = self._tilted, set()
        return [key(code(way), False) for way in sorted(tilted)]


def key(which: int, down: bool) -> pygame.Event:
    return pygame.Event(pygame.KEYDOWN if down else pygame.KEYUP, key=which)

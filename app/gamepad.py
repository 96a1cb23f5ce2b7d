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
    (pygame.CONTROLLER_AXIS_LEFTX, -1): pygame.K_a,
    (pygame.CONTROLLER_AXIS_LEFTX, 1): pygame.K_d,
    (pygame.CONTROLLER_AXIS_LEFTY, -1): pygame.K_w,
    (pygame.CONTROLLER_AXIS_LEFTY, 1): pygame.K_s,
    (pygame.CONTROLLER_AXIS_RIGHTX, -1): pygame.K_LEFT,
    (pygame.CONTROLLER_AXIS_RIGHTX, 1): pygame.K_RIGHT,
    (pygame.CONTROLLER_AXIS_TRIGGERRIGHT, 1): pygame.K_LCTRL,
}
BUTTONS = {
    pygame.CONTROLLER_BUTTON_A: pygame.K_SPACE,
    pygame.CONTROLLER_BUTTON_B: pygame.K_e,
    pygame.CONTROLLER_BUTTON_X: pygame.K_b,
    pygame.CONTROLLER_BUTTON_Y: pygame.K_TAB,
    pygame.CONTROLLER_BUTTON_LEFTSHOULDER: pygame.K_BACKSPACE,
    pygame.CONTROLLER_BUTTON_RIGHTSHOULDER: pygame.K_LSHIFT,
    pygame.CONTROLLER_BUTTON_START: pygame.K_ESCAPE,
    pygame.CONTROLLER_BUTTON_BACK: pygame.K_F1,
    pygame.CONTROLLER_BUTTON_DPAD_UP: pygame.K_UP,
    pygame.CONTROLLER_BUTTON_DPAD_DOWN: pygame.K_DOWN,
    pygame.CONTROLLER_BUTTON_DPAD_LEFT: pygame.K_a,
    pygame.CONTROLLER_BUTTON_DPAD_RIGHT: pygame.K_d,
}


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
                return [key(BUTTONS[event.button], event.type == pygame.CONTROLLERBUTTONDOWN)]
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
                events.append(key(AXES[way], down))
        return events

    def _upright(self) -> list[pygame.Event]:
        """Every stick lets go: its pad was unplugged."""
        tilted, self._tilted = self._tilted, set()
        return [key(AXES[way], False) for way in sorted(tilted)]


def key(code: int, down: bool) -> pygame.Event:
    return pygame.Event(pygame.KEYDOWN if down else pygame.KEYUP, key=code)

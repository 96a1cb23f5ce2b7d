"""The world model, off the event loop: a thread that owns a World and turns keys into frames.

Loading, compiling and dreaming all happen here, so a window drawn elsewhere never hangs. Frames leave
through a slot that keeps only the newest: a slow screen skips frames, and never shows a stale one. A
recording must skip none, so `remember` is called for each. An error here is kept for whoever calls `check`.
"""

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from worldmodel.actions import FPS, action
from worldmodel.openings import Opening

from .errors import PackageError, SaveError, is_out_of_memory
from .frame import Frame, World
from .mouse import MouseLook
from .past import Past
from .race import Race, rivals_of
from .real import RealGame

STARTING, WARMING, DREAMING, PAUSED, STOPPED = "starting", "warming up", "dreaming", "paused", "stopped"
REWINDING, REMEMBERING = "rewinding", "remembering how it was"


class Rewound(NamedTuple):
    """Where a rewind is: indices of the frame on screen and of the first and last there are."""

    at: int
    oldest: int
    newest: int
    bytes: int  # of all moments kept


class Take(NamedTuple):
    """A way the dream went, and what it takes to go on with it."""

    number: int
    frame: Frame  # its last
    moment: Any  # None where a file has it
    reread: str | None  # see Frame


class Latest:
    """A slot for one frame. Putting another drops the older."""

    def __init__(self) -> None:
        self._filled = threading.Condition()
        self._frame: Frame | None = None

    def put(self, frame: Frame) -> None:
        with self._filled:
            self._frame = frame
            self._filled.notify_all()

    def take(self, timeout: float = 0) -> Frame | None:
        """The newest frame not taken yet, waiting for one up to `timeout` seconds."""
        with self._filled:
            if self._frame is None:
                self._filled.wait(timeout)
            frame, self._frame = self._frame, None
            return frame


class Hands:
    """The keys held at this moment, by a person. A key tapped between two frames counts for the next."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held, self._tapped = action(), action()
        self._look = MouseLook()

    def hold(self, held: np.ndarray, tapped: np.ndarray, moved: float = 0) -> None:
        """Also how many pixels the mouse has moved to the right, where it is used to look."""
        with self._lock:
            self._held, self._tapped = held, self._tapped | tapped
            self._look.move(moved)

    def __call__(self, index: int) -> np.ndarray:
        """Key vector for the frame about to be dreamt."""
        with self._lock:
            keys, self._tapped = self._held | self._tapped, action()
            return self._look(keys)


class Dreamer(threading.Thread):
    """Dreams until `frames` are dreamt or `stop` is called. Any thread may call any method but `run`."""

    def __init__(
        self,
        open_world: Callable[[Callable[[str], None]], World],
        openings: Mapping[str, Opening],
        scene: str,
        controller: Callable[[int], np.ndarray],
        *,
        seed: int = 0,
        prompt: str | None = None,
        fps: float = 17.5,
        frames: int | None = None,
        fallback: str | None = None,
        saves: Path = Path("saves"),
        past: Past | None = None,
        remember: Callable[[Frame], None] = lambda frame: None,
        open_real: Callable[[Callable[[str], None]], RealGame] = RealGame,
    ) -> None:
        """`fallback` is the memory to go on with where there is no room for the one that was chosen."""
        super().__init__(name="dreamer", daemon=True)
        self.openings, self.scene = openings, scene
        self.frames = Latest()
        self.state = STARTING
        self.error: BaseException | None = None
        self.paused = False
        self.notices: deque[str] = deque()  # lines worth showing once; <save> stands for the key that saves
        self.words: Sequence[str] = ()  # that a prompt may be made of, once there is a world

        self._open_world = open_world
        self._controller = controller
        self._remember = remember
        self._seed, self._prompt = seed, prompt
        self._unknown: set[str] = set()
        self._period = 1 / fps if fps else 0.0
        self._left, self._fallback = frames, fallback
        self._saved = saves / "quick.save"

        self.past = past or Past()
        self.rewound: Rewound | None = None  # while it is
        self.race: Race | None = None  # while memories are compared, or the real game is beside the dream
        self._open_real, self._real = open_real, None
        self._other: Take | None = None
        self._marked: tuple[str, Take | None] = "", None  # what was saved last of this dream
        self._take, self._takes = 1, 1
        self._last: Frame | None = None  # what the world has come to
        self._reread: str | None = None  # what the next frame is to say of the memory
        self._ids = count()

        self._wake = threading.Condition()
        self._wishes: deque[Callable[[World], None]] = deque()
        self._single_steps = 0
        self._going_back, self._branching = False, False
        self._stopping = False

        self._index, self._run = 0, -1
        self._due, self._ended = 0.0, None

    # What others may ask.

    def pause(self, paused: bool = True) -> None:
        with self._wake:
            self.paused = paused
            self._wake.notify_all()

    def single_step(self) -> None:
        """Dream one frame and stay paused."""
        with self._wake:
            self.paused = True
            self._single_steps += 1
            self._wake.notify_all()

    def reset(self) -> None:
        """Begin the scene again."""
        self._wish(self._begin)

    def next_world(self) -> None:
        """Begin the scene after this one."""
        self._wish(self._turn_page)

    def say(self, text: str) -> None:
        """Change the prompt from the next frame on."""
        self._wish(lambda world: self._say(world, text))

    def switch_memory(self) -> None:
        """Remember in the next way there is."""
        self._wish_alone(self._switch)

    def compare(self) -> None:
        """Begin again with another memory beside this one; the second time, end that."""
        self._wish(self._compare)

    def show_real(self) -> None:
        """Begin again with the real game beside the dream; the second time, end that."""
        self._wish(self._show_real)

    def save(self) -> None:
        """Save the moment."""
        self._wish(self._save)

    def load(self) -> None:
        """Go on from the moment that was saved last, also after a restart."""
        self._wish_alone(self._load)

    def rewind(self) -> None:
        """Show frames backwards, until `let_go` or `branch`."""
        with self._wake:
            self._going_back, self._branching = True, False
        self._wish_alone(self._rewind)

    def let_go(self) -> None:
        """Play on from where a rewind has come to, as if what came after had never been."""
        with self._wake:
            self._going_back = False
            self._wake.notify_all()

    def branch(self) -> None:
        """Play on from where a rewind has come to as a new take; without a rewind, go to the other take."""
        with self._wake:
            self._branching = self._going_back
        self.let_go() if self._branching else self._wish_alone(self._change_takes)

    def stop(self) -> None:
        with self._wake:
            self._stopping = True
            self._wake.notify_all()

    def check(self) -> None:
        """Raise what went wrong in the thread, if anything did."""
        if self.error is not None:
            raise self.error

    @property
    def done(self) -> bool:
        return self.state == STOPPED

    # What the thread does.

    def run(self) -> None:
        try:
            world = self._open_world(self._tell)
            self.words = world.words
            self._tell(WARMING)
            self._or_smaller(world, self._begin)
            while self._or_smaller(world, self._go_on_dreaming):
                pass
        except BaseException as error:
            self.error = error
        finally:
            self._end_race()
            self._tell(STOPPED)

    def _go_on_dreaming(self, world: World) -> bool:
        """Dream a frame when it is time for one. False if there will be none."""
        if self._left == 0 or not self._wait_for_turn(world):
            return False
        frame = self._dream(world)
        self._remember(frame)
        self.frames.put(frame)
        if self.race:
            self.race.follow(lambda: self._stopping)
        self._left = None if self._left is None else self._left - 1
        return True

    def _or_smaller(self, world: World, work: Callable[[World], bool | None]) -> bool | None:
        """Do some work; where it runs out of memory, go on with less."""
        try:
            return work(world)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            failed = error.with_traceback(None)  # which held on to all that was being computed
        self._make_room(world, failed)
        return True

    def _make_room(self, world: World, failed: Exception) -> None:
        """Give up a comparison, or else the kind of memory. Raises what failed where there is neither."""
        was, smaller = world.memory, world.memory if self.race else self._fallback
        if smaller is None or smaller not in world.memories or (smaller == was and not self.race):
            raise failed
        self._tell("out of memory, making room")
        self._end_race()
        self._other, last = None, self._last
        self.past.forget()
        world.shrink(smaller)
        if last is None:
            self._begin(world)
        else:
            self._begin_at(world, self._index, last.picture)
        alone = f"{was} plays on alone" if smaller == was else f"{smaller} plays on in place of {was}"
        self.notices.append(f"Out of memory: {alone}. There is no way back beyond this frame.")

    def _wait_for_turn(self, world: World) -> bool:
        """Grant wishes and sleep until it is time for a frame. False if there will be none."""
        while True:
            with self._wake:
                if self._stopping:
                    return False
                early = self._due - time.perf_counter()
                wish = self._wishes.popleft() if self._wishes else None
                if wish is None and self.paused and not self._single_steps:
                    self._tell(PAUSED)
                    self._ended = None
                    self._wake.wait()
                elif wish is None and early > 0 and not self.paused:
                    self._wake.wait(early)
                elif wish is None:
                    self._single_steps = max(0, self._single_steps - 1)
                    return True
            if wish is not None:
                wish(world)

    def _dream(self, world: World) -> Frame:
        began = time.perf_counter()
        self._due = max(self._due + self._period, began)  # late once is not late for ever
        keys = self._controller(self._index)
        picture = self.race.lead(keys) if self.race else world.decode(world.step(keys))
        ended = time.perf_counter()
        took, self._ended = self._ended and ended - self._ended, ended
        self._index += 1
        self._tell(PAUSED if self.paused else DREAMING)
        frame = self._frame(world, picture, keys, took)
        if not self.race:
            self.past.see(world, frame)
        return frame

    def _begin(self, world: World, race: Race | None = None) -> None:
        race = race or self.race
        begin = race.begin if race else world.reset
        picture = begin(self.openings[self.scene], seed=self._seed)
        self.race = race
        if self._prompt:
            self._say(world, self._prompt)
        self._begin_at(world, 0, picture)

    def _begin_at(self, world: World, index: int, picture: np.ndarray) -> None:
        """A dream of its own begins here."""
        self._index, self._run, self._ended, self._reread = index, self._run + 1, None, None
        self._take, self._takes, self._other, self._marked = 1, 1, None, ("", None)
        frame = self._frame(world, picture, action(), None)
        self.past.begin(world, frame)
        self.frames.put(frame)

    def _compare(self, world: World) -> None:
        rivals = rivals_of(world)
        if self.race:
            self._play_alone(world)
        elif rivals:
            self._tell("beginning again, side by side")
            self._begin(world, Race(world, [world.beside(rival) for rival in rivals]))
            self.notices.append(
                "The same keys, prompt and seed. <difference> shows the difference, <compare> ends it."
            )
        else:
            self.notices.append(f"There is no memory but {world.memory} to compare.")

    def _show_real(self, world: World) -> None:
        if self.race:
            return self._play_alone(world)
        try:
            self._real = self._open_real(self.notices.append)
        except PackageError as error:
            self.notices.append(str(error))
            return
        self._tell("beginning again, beside the real game")
        self._begin(world, Race(world, [self._real], together=True))
        self.notices.append(
            "The real game has the same keys. <difference> shows the difference, <real> ends it."
        )

    def _play_alone(self, world: World) -> None:
        assert self._last is not None
        self._end_race()
        self.past.begin(world, self._last)
        self.notices.append(f"{world.memory} plays on alone.")

    def _end_race(self) -> None:
        if self._real:
            self._real.close()
        self.race, self._real = None, None

    def _turn_page(self, world: World) -> None:
        names = list(self.openings)
        self.scene = names[(names.index(self.scene) + 1) % len(names)]
        self.notices.append(self.openings[self.scene].title)
        self._begin(world)

    def _switch(self, world: World) -> None:
        names = list(world.memories)
        name = names[(names.index(world.memory) + 1) % len(names)]
        self._tell(f"reading the last frames again, through {name}")
        read, self._ended = world.switch(name), None
        self._reread = world.prompt
        self.past.keep(world)  # dreaming again from an earlier moment would not come here
        self.notices.append(
            f"Memory: {name}. It has read the last {read} frames again; <memory> takes the next."
        )

    def _save(self, world: World) -> None:
        assert self._last is not None
        mark = secrets.token_hex(8)
        about = {"scene": self.scene, "index": self._index, "mark": mark}
        try:
            size = world.save(self._saved, about, self._last.picture)
        except OSError as error:
            self.notices.append(f"Cannot save {self._saved}: {error.strerror or error}. Make room there.")
        else:
            self._marked = mark, Take(self._take, self._last, None, self._reread)
            self.notices.append(f"Saved frame {self._index:,} ({size / 1e6:.0f} MB); <load> goes back to it.")

    def _load(self, world: World) -> None:
        try:
            about, picture = world.load(self._saved)
        except (SaveError, OSError) as error:
            self.notices.append(str(error))
            return
        mark, saved = self._marked
        if saved is not None and about.get("mark") == mark:
            self._go_on(world, saved)
        else:  # of another dream, perhaps before a restart
            self.scene = about["scene"] if about["scene"] in self.openings else self.scene
            self._keep_prompt(world)
            self._begin_at(world, about["index"], picture)
        self.notices.append(f"Back at frame {self._index:,}")

    def _rewind(self, world: World) -> None:
        """Show earlier and earlier frames while the key is held, at the game's own speed; then be there."""
        frames, last = self.past.frames, self._last
        assert last is not None
        if len(frames) < 2:
            self.notices.append(self._no_way_back(world))
            return
        self._tell(REWINDING)
        for shown in reversed(frames[:-1]):
            self.rewound = Rewound(shown.index, frames[0].index, last.index, self.past.bytes)
            self.frames.put(shown)
            if self._is_let_go(1 / FPS):
                break
        while not self._is_let_go(None):
            pass  # at the oldest frame
        if self._stopping:
            return
        self._tell(REMEMBERING)
        if branching := self._branching:
            self._other = Take(self._take, last, world.moment(), self._reread)
            self._takes += 1
            self._take = self._takes
        self.past.go_back(world, shown)
        self._arrive(world, shown)
        self.notices.append(
            f"Take {self._take} begins at frame {shown.index:,}; <branch> goes back to the other."
            if branching
            else f"Back at frame {shown.index:,}: {last.index - shown.index:,} frames are undone."
        )
        self.rewound = None

    def _is_let_go(self, timeout: float | None) -> bool:
        """Whether the key of a rewind is up, after waiting up to so many seconds for that."""
        with self._wake:
            return self._wake.wait_for(lambda: not self._going_back or self._stopping, timeout)

    def _no_way_back(self, world: World) -> str:
        size, room = world.stats().bytes / 1e6, self.past.megabytes
        if size > room:
            return f"No rewind: one moment of {world.memory} is {size:,.0f} MB, rewind.megabytes {room}."
        return "This is as far back as it goes."

    def _change_takes(self, world: World) -> None:
        """Go to the end of the other take. There is no way back beyond it but to this one."""
        there, last = self._other, self._last
        if there is None or last is None:
            self.notices.append("There is one take only. <branch> while <rewind> is held begins another.")
            return
        self._other = Take(self._take, last, world.moment(), self._reread)
        world.restore(there.moment)
        self._go_on(world, there)
        self.notices.append(f"Take {self._take} at frame {self._index:,}; <branch> goes back to the other.")

    def _go_on(self, world: World, take: Take) -> None:
        """The world is now where a take was left."""
        self.past.begin(world, take.frame)
        self._arrive(world, take.frame)
        self._take, self._reread = take.number, take.reread
        self.frames.put(take.frame)

    def _arrive(self, world: World, frame: Frame) -> None:
        """The world is now what it was at a frame."""
        self._index, self._last, self._ended, self._reread = frame.index, frame, None, None
        self._keep_prompt(world)

    def _keep_prompt(self, world: World) -> None:
        """A reset is to say what holds now, unless it is what the scene says by itself."""
        self._prompt = None if world.prompt == self.openings[self.scene].prompt else world.prompt

    def _say(self, world: World, text: str) -> None:
        self._prompt = text
        unknown = [word for word in world.say(text) if word not in self._unknown]
        self._unknown.update(unknown)  # a reset says the prompt again; the warning need not come again
        if unknown:
            self.notices.append(f"Words this world never heard: {', '.join(unknown)}")

    def _frame(self, world: World, picture: np.ndarray, keys: np.ndarray, took: float | None) -> Frame:
        picture = np.array(picture)
        picture.setflags(write=False)
        stats = world.stats()
        self._last = Frame(
            picture=picture,
            keys=keys,
            index=self._index,
            run=self._run,
            took=took,
            timings=dict(world.timings),
            kept=stats.kept,
            seen=stats.seen,
            bytes=stats.bytes,
            memory=world.memory,
            world=self.scene,
            prompt=world.prompt,
            player=getattr(self._controller, "now", ""),
            reread=self._reread,
            take=self._take,
            id=next(self._ids),
            after=self._last.id if self._last else -1,
        )
        self._reread = None
        return self._last

    def _wish(self, wish: Callable[[World], None]) -> None:
        with self._wake:
            self._wishes.append(wish)
            self._wake.notify_all()

    def _wish_alone(self, wish: Callable[[World], None]) -> None:
        """A wish for one world, that others beside it could not follow."""

        def granted(world: World) -> None:
            if self._real:
                self.notices.append("Not beside the real game; <real> ends that.")
            elif self.race:
                self.notices.append("Not while memories are compared; <compare> ends that.")
            else:
                wish(world)

        self._wish(granted)

    def _tell(self, state: str) -> None:
        self.state = state

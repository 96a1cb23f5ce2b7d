"""A play session on disk: an episode (worldmodel/episodes.py), a video to share, and the facts to repeat it.

    frames.mjpeg, actions.jsonl    the episode: pictures as dreamt, keys, one by one; each with its link of a
                                   hash chain over the pictures as they were before JPEG (chain.py)
    video.mp4                      the same pictures, enlarged so that any player shows crisp pixels
    screen.mp4                     if asked for, the window as it was, with all that is written over the dream
    events.jsonl                   what changed on the way, before which frame: the prompt, who plays, the
                                   memory and the prompt under which it read the last frames again; a
                                   rewind or a branch, from which frame to which
    meta.json                      world, seed, memory, weights, machine; at the end frames and FPS

Everything is appended, and handed to the system twice a second, the video as a fragment per second, so a
process that is killed leaves recordings that play. One recording is one unbroken dream: a reset or
another world closes it and opens the next. A rewind does not: frames are numbered from 0 as they were
dreamt, what was undone stays, and an event says that frame n was dreamt after frame `to` and not n - 1.
"""

import json
import os
import queue
import tempfile
import threading
from array import array
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.error import FFmpegError

from worldmodel.episodes import EpisodeWriter

from . import chain
from .errors import DiskError
from .frame import Frame
from .meter import percentiles

ENLARGED = 2  # an encoder works per pixel, and the dream wants every core: 3 costs it half as much again
HANDED = 8  # frames from one time that the episode is handed to the system to the next: half a second
WAITING = 8  # things to be written; beyond them the window is not filmed
BACKLOG = 128  # frames; then the dreamer waits, because an episode with a hole cannot be replayed


def check_writable(root: Path) -> None:
    """Raise DiskError now rather than after minutes of play."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root) as probe:
            probe.write(b"a byte")
            probe.flush()
    except OSError as error:
        raise disk_error(error, root) from error


def disk_error(error: Exception, path: Path) -> DiskError:
    reason = getattr(error, "strerror", None) or str(error)
    return DiskError(
        f"Cannot record in {path}: {reason}. "
        "Make room or permit writing there, or choose another folder with recordings=FOLDER."
    )


class Video:
    """An H.264 file that plays up to its last whole second, whatever happens to its writer."""

    def __init__(
        self, path: Path, shape: tuple[int, ...], fps: float, about: str, enlarged: int = ENLARGED
    ) -> None:
        fragments = {"movflags": "frag_keyframe+empty_moov+default_base_moof", "flush_packets": "1"}
        self._container = av.open(str(path), "w", options=fragments)
        self._container.metadata["comment"] = about
        # zerolatency: no frame waits in the encoder for the next ones. ultrafast: half the time of superfast
        # for a file 7 % larger, and the dream wants every core
        options = {"preset": "ultrafast", "tune": "zerolatency", "crf": "18"}
        self._stream = self._container.add_stream(
            "libx264", rate=Fraction(fps).limit_denominator(1000), options=options
        )
        even = 2 * enlarged  # colours are kept for every second pixel
        self._stream.height, self._stream.width = (even * (side // 2) for side in shape[:2])
        self._stream.pix_fmt = "yuv420p"
        self._stream.codec_context.gop_size = max(1, int(fps))  # a key frame closes the fragment before it
        self._stream.codec_context.thread_count = 1  # the other cores dream

    def add(self, picture: np.ndarray) -> None:
        frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
        frame = frame.reformat(self._stream.width, self._stream.height, "yuv420p", interpolation="POINT")
        self._container.mux(self._stream.encode(frame))

    def close(self) -> None:
        try:
            self._container.mux(self._stream.encode(None))
        finally:
            self._container.close()


class Recording:
    """One folder, one unbroken dream."""

    def __init__(self, root: Path, first: Frame, facts: Mapping[str, Any], fps: float) -> None:
        now = datetime.now()
        self.folder = unused(root / f"{now:%Y%m%d-%H%M%S}_{first.world}_{first.memory}")
        self._meta = {
            "world": first.world,
            "prompt": first.prompt,
            "memory": first.memory,
            **facts,
            "started": now.astimezone().isoformat(timespec="seconds"),
            "first_frame": first.index,
            "fps": fps,
            "height": first.picture.shape[0],
            "width": first.picture.shape[1],
            "complete": False,
        }
        self._seconds = array("d")
        self._frames = 0
        self._told = facts_that_change(first)
        self._link = chain.BEGINNING
        self._number = {first.after: -1}  # of each frame by its id; -1 is what came before the first
        self._writer = EpisodeWriter(self.folder, self._meta)
        try:
            self._events = open(self.folder / "events.jsonl", "w", encoding="utf-8")
            self._video = self._film("video.mp4", first.picture, ENLARGED)
            self._screen: Video | None = None
        except BaseException:
            self.abandon()
            raise

    def add(self, frame: Frame) -> None:
        now = facts_that_change(frame)
        news: dict[str, Any] = {what: x for what, x in now.items() if x != self._told[what]}
        if frame.reread is not None:
            news |= {"memory": frame.memory, "reread": frame.reread}
        if (to := self._number.get(frame.after, -1)) != self._frames - 1:
            news["branch" if "take" in news else "rewind"] = {"from": self._frames - 1, "to": to}
        self._number[frame.id] = self._frames
        if news:
            self._told = now
            self._events.write(json.dumps({"frame": self._frames, **news}) + "\n")
            self._events.flush()
        self._link = chain.link(self._link, frame.picture)
        self._writer.add(frame.picture, frame.keys, hash=self._link)
        if self._frames % HANDED == 0:
            self._writer.flush()
        self._video.add(frame.picture)
        self._frames += 1
        if frame.took is not None:
            self._seconds.append(frame.took)

    def add_screen(self, picture: np.ndarray) -> None:
        """The window [h, w, 3]. One of another size than the first is brought to that."""
        if self._screen is None:
            self._screen = self._film("screen.mp4", picture, 1)
        self._screen.add(picture)

    def _film(self, name: str, first: np.ndarray, enlarged: int) -> Video:
        about = json.dumps({key: self._meta[key] for key in ("world", "prompt", "memory")})
        return Video(self.folder / name, first.shape, self._meta["fps"], about, enlarged)

    def close(self) -> None:
        """Finish every file, then say in meta.json that it is whole."""
        self._video.close()
        if self._screen is not None:
            self._screen.close()
        self._writer.close()
        self._events.close()
        played = {"frames": self._frames, "fps_played": percentiles(self._seconds), "complete": True}
        whole = self.folder / "meta.json.part"
        whole.write_text(json.dumps({**self._meta, **played}, indent=1), encoding="utf-8")
        os.replace(whole, self.folder / "meta.json")

    def abandon(self) -> None:
        """Let go of every file after a failure. What has been written stays."""
        # A file whose last bytes do not fit raises on close, yet is closed; the writer has two of them.
        for close in (self._writer.close, self._writer.close):
            with suppress(OSError):
                close()
        for name in ("_events", "_video", "_screen"):
            with suppress(AttributeError, OSError, FFmpegError):
                getattr(self, name).close()


def facts_that_change(frame: Frame) -> dict[str, Any]:
    return {"prompt": frame.prompt, "player": frame.player, "memory": frame.memory, "take": frame.take}


def unused(folder: Path) -> Path:
    """The folder itself, or with a number behind it: two recordings may begin within a second."""
    names = (folder.with_name(f"{folder.name}-{n}") for n in range(2, 1000))
    return folder if not folder.exists() else next(name for name in names if not name.exists())


class Recorder:
    """Sees every frame, keeps those between `start` and `stop`, and writes them in a thread of its own."""

    def __init__(self, root: Path, facts: Mapping[str, Any], fps: float) -> None:
        self.root, self._facts, self._fps = root, facts, fps
        self.rolling = False
        self.folders: list[Path] = []
        self.frames = 0  # of the recording under way, or of the last one
        self.error: Exception | None = None
        self._recording: Recording | None = None
        self._run = -1
        self._door = threading.Lock()  # frames come from one thread, start and stop from another
        self._queue: queue.Queue[Frame | np.ndarray | str | None] = queue.Queue(BACKLOG)
        self._thread = threading.Thread(target=self._work, name="recorder", daemon=True)
        self._thread.start()

    def start(self) -> None:
        with self._door:
            self.error = None
            self.frames = 0
            self.rolling = True

    def stop(self) -> None:
        with self._door:
            if self.rolling:
                self.rolling = False
                self._queue.put("stop")

    def see(self, frame: Frame) -> None:
        """Called by the dreamer, once per frame."""
        with self._door:
            if self.rolling:
                self._queue.put(frame)

    def see_screen(self, picture: np.ndarray) -> None:
        """Called by a window that is to be filmed, once per frame that it has drawn.

        It never waits: a picture that comes while others lie there is left out.
        """
        if self.rolling and self._queue.qsize() < WAITING:
            self._queue.put(picture)

    def wait(self) -> None:
        """Until all that was seen is written, or could not be."""
        self._queue.join()

    def close(self) -> None:
        """Finish what is being written; afterwards everything is on disk."""
        self.stop()
        self._queue.put(None)
        self._thread.join()

    def check(self) -> None:
        """Raise what went wrong with the present recording, if anything did."""
        if self.error is not None:
            raise self.error

    @property
    def seconds(self) -> float:
        """Length of the recording under way, in game time."""
        return self.frames / self._fps

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            try:
                if isinstance(item, Frame):
                    self._add(item)
                elif isinstance(item, str):
                    self._finish()
                elif self._recording is not None:
                    self._recording.add_screen(item)
            except Exception as error:
                self._fail(error)
            self._queue.task_done()

    def _add(self, frame: Frame) -> None:
        if self.error is not None:
            return  # was in the queue when the disk failed
        if self._recording is not None and frame.run != self._run:
            self._finish()
        if self._recording is None:
            self._recording = Recording(self.root, frame, self._facts, self._fps)
            self.folders.append(self._recording.folder)
            self._run, self.frames = frame.run, 0
        self._recording.add(frame)
        self.frames += 1

    def _finish(self) -> None:
        if self._recording is not None:
            self._recording.close()
            self._recording = None

    def _fail(self, error: Exception) -> None:
        self.rolling = False
        recording, self._recording = self._recording, None
        if recording is not None:
            recording.abandon()
        where = recording.folder if recording is not None else self.root
        self.error = disk_error(error, where) if isinstance(error, OSError | FFmpegError) else error

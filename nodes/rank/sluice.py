"""sluice: the rank protocol in one file, without dependencies (Python 3.8+).

Three lines make a training loop one that can be yielded, shrunk, paused and
resumed without losing a step:

    import sluice
    gang = sluice.attach()                        # 1
    state = load(gang.manifest) if gang.manifest else fresh()
    for step in gang.steps(last=1000):            # 2  steps count from 1
        loss = train_one(state, step)
        gang.report(loss=loss, samples=64)        #    optional
        if gang.should_save(every=100):           # 3  once, at the end of the step
            gang.saved(save(state, step))         #    path, or list of paths

should_save() ends the step. It is True when `every` says so, after the last
step, and when the controller has agreed with all ranks to stop after this very
step; then the loop ends by SystemExit(0) once saved() was called, so nothing
after it runs. While the controller holds the gang it blocks. Write each rank's
shard to a temporary file in gang.checkpoint_dir, fsync, rename; then call
saved(). Never decide by yourself that a checkpoint is current: the controller's
manifest does, and the next generation is given it as gang.manifest (a dict with
step, samples, world, shards; gang.shards() yields verified paths).

gang.samples counts the samples the whole job has consumed, over all
generations: report() is given those of this step over all ranks.

On a yield the hooks attach(on_yield=..., on_resume=...) run in the training
thread; by default an initialised torch.cuda is synchronised. gang.phase("eval")
(train, compile, eval, save, load) says that no step boundary is near.

Ranks that do not wait for each other: attach(sync="none").

Without SLUICE_SOCKET nothing is connected and the same script runs anywhere.
Orders are answered by a daemon thread, which comes back for ever when the agent
is away; training goes on meanwhile. Use steps() and should_save() from one
thread.
"""

import hashlib
import json
import math
import os
import socket
import sys
import threading
import time

VERSION = 1
MAX_LINE_BYTES = 64 << 10
MAX_UNACKED = 256  # when full the oldest is dropped: a newer checkpoint replaced it
MAX_ENDED = 64  # ids of ended orders that are remembered
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.02, 1.0
LINGER_S = 10.0  # how long the last messages wait for the agent's ack

# States of the one order a rank follows (None: steps begin freely).
HELD, COMMITTED, YIELDING, YIELDED, RESUMING, SAVING, STOPPED = range(7)
PHASES = ("train", "compile", "eval", "save", "load")


class Torn(Exception):
    """A shard of the manifest is missing or has other bytes than its digest."""


class _Order:
    def __init__(self, id, mode, begun, under):
        self.id, self.mode, self.begun, self.under = id, mode, begun, under
        self.phase, self.commit, self.step, self.resume = HELD, None, None, False


def attach(on_yield=None, on_resume=None, sync="all", scope="node", environ=None):
    """Join the gang that the environment names. Never blocks."""
    return Gang(os.environ if environ is None else environ, on_yield, on_resume, sync, scope)


class Gang:
    """One rank's side of the protocol. See the module's text."""

    def __init__(self, env, on_yield, on_resume, sync, scope):
        if sync not in ("all", "none") or scope not in ("node", "shared"):
            raise ValueError("sync is all or none, scope is node or shared")
        self.job = env.get("SLUICE_JOB", "")
        self.generation = int(env.get("SLUICE_GENERATION") or 0)
        self.rank = int(env.get("RANK") or 0)
        self.world_size = int(env.get("WORLD_SIZE") or 1)
        self.checkpoint_dir = env.get("SLUICE_CHECKPOINT_DIR") or "."
        self.sync, self.scope = sync, scope
        self.manifest, self._manifest_dir = _read_manifest(env.get("SLUICE_RESUME"))
        self.step = self.manifest["step"] if self.manifest else 0
        self.samples = self.manifest.get("samples", 0) if self.manifest else 0
        self._resumed_from, self._resumed_samples = self.step, self.samples
        self._begun = self._done = self.step
        self._loss = None
        self._step_loss, self._step_samples = None, 0
        self._phase = "train"
        self._last = None  # the last step wanted
        self._saved_step = None
        self._must_save = False
        self._on_yield, self._on_resume = on_yield or _quiet_cuda, on_resume
        self._order, self._ended, self._unacked, self._seq = None, [], [], 0
        self._finished = None
        self._lock = threading.Condition()
        self._sock = None
        self._path = env.get("SLUICE_SOCKET")
        if self._path:
            threading.Thread(target=self._run, name="sluice", daemon=True).start()

    # -- the training loop ---------------------------------------------------

    def steps(self, start=None, last=None):
        """Yield the steps after start (default: the one resumed from) through
        last. After it the rank has said finished."""
        with self._lock:
            if start is not None:
                self._begun = self._done = self.step = start
            self._last = last
        while last is None or self._done < last or self._begun > self._done:
            if self._begun == self._done:  # else should_save() has begun it
                self._begin()
            self.step = self._begun
            yield self._begun
            with self._lock:
                if self._done < self.step == self._begun:
                    self._end_step()
        self._farewell({"type": "finished", "step": self._done, "samples": self.samples})

    def report(self, loss=None, samples=0):
        """Tell the loss and the samples (over all ranks) of the running step."""
        self._step_loss = None if loss is None else float(loss)
        self._step_samples = int(samples)

    def should_save(self, every=0):
        """End the running step, and say whether to save now. Call once a step."""
        with self._lock:
            if self._begun > self._done:
                self._end_step()
            done = self._done
        if (every and done % every == 0) or (self._last is not None and done >= self._last):
            return True
        return self._begin(may_exit=False)

    def saved(self, paths, step=None, scope=None):
        """Report the shard, or shards, that are safely on disk for this step."""
        step = self._done if step is None else step
        for path in [paths] if isinstance(paths, (str, os.PathLike)) else paths:
            path = os.path.abspath(os.fspath(path))
            self._keep({
                "type": "shard", "generation": self.generation, "step": step, "file": path,
                "bytes": os.path.getsize(path), "digest": _digest(path),
                "scope": scope or self.scope, "samples": self.samples,
            })
        self._saved_step = step
        if self._must_save and step == self._done:
            self._stop()

    def phase(self, name):
        """Say what the rank is doing: train, compile, eval, save or load."""
        if name not in PHASES:
            raise ValueError("phase is one of %s" % (PHASES,))
        with self._lock:
            self._phase = name
            self._send({"type": "phase", "phase": name})

    def shards(self):
        """Yield (rank, path) of the manifest's shards, each verified. Raises Torn."""
        for shard in (self.manifest or {}).get("shards", []):
            path = os.path.join(self._manifest_dir, shard["file"])
            if not os.path.exists(path) or os.path.getsize(path) != shard["bytes"] or _digest(path) != shard["digest"]:
                raise Torn("step %d: %s is not what the manifest says" % (self.manifest["step"], path))
            yield shard["rank"], path

    # -- step boundaries -----------------------------------------------------

    def _end_step(self):
        self._done = self._begun
        self.samples += self._step_samples
        self._loss, self._step_loss, self._step_samples = self._step_loss, None, 0
        self._send(self._progress())

    def _begin(self, may_exit=True):
        """Begin the next step; blocks while held or yielded. On an agreed stop:
        True if the state has yet to be saved, else say so and exit."""
        while True:
            with self._lock:
                decision = self._decide()
                if decision == "wait":
                    self._lock.wait()
            if decision == "proceed":
                return False
            if decision == "yield":
                self._on_yield()
                self._now_yielded()
            elif decision == "resume":
                if self._on_resume:
                    self._on_resume()
                self._now_resumed()
            elif decision == "save":
                if self._saved_step == self._done or may_exit:
                    self._stop()
                self._must_save = True
                return True

    def _decide(self):
        """What to do at this step boundary. Under the lock."""
        order = self._order
        if order is None or (order.phase == COMMITTED and self._begun < order.step):
            self._begun += 1
            self._send(self._progress())
            return "proceed"
        if order.phase == COMMITTED:
            order.phase = SAVING if order.mode == "stop" else YIELDING
        return {HELD: "wait", YIELDED: "wait", YIELDING: "yield", RESUMING: "resume"}.get(order.phase, "save")

    def _now_yielded(self):
        with self._lock:
            order = self._order
            order.phase = RESUMING if order.resume else YIELDED
            self._send(self._yielded(order))

    def _now_resumed(self):
        with self._lock:
            self._send(self._end_resumed(self._order))

    def _stop(self):
        with self._lock:
            order = self._order
            message = {"type": "stopped", "step": self._done, "samples": self.samples}
            if order is not None:
                order.phase, message["id"] = STOPPED, order.id
        self._farewell(message)
        raise SystemExit(0)

    def _farewell(self, message):
        """Send a last message and wait, within the limit, until it was taken."""
        with self._lock:
            kept = self._keep(message)
            if message["type"] == "finished":
                self._order, self._finished = None, kept
            limit = time.monotonic() + LINGER_S
            while self._path and self._unacked and time.monotonic() < limit:
                self._lock.wait(limit - time.monotonic())

    # -- orders --------------------------------------------------------------

    def _on(self, m):
        """Take one message; return the answer, or None. Under the lock."""
        kind, id = m.get("type"), m.get("id")
        if kind == "ack":
            self._unacked = [u for u in self._unacked if u["seq"] > m.get("seq", 0)]
            return None
        if kind == "refused":
            print("sluice: agent refused us: %s" % m.get("reason"), file=sys.stderr)
            return None
        if kind not in ("prepare", "commit", "abort", "resume") or not id:
            return self._refuse(m, "not an order")
        if kind in ("prepare", "commit") and m.get("mode") not in ("yield", "stop"):
            return self._refuse(m, "mode is yield or stop")
        if self._finished:
            return self._finished
        for ended, answer in self._ended:
            if ended == id:
                again = {"resumed": kind != "abort", "aborted": kind == "abort"}[answer["type"]]
                return answer if again else self._refuse(m, "ended: " + answer["type"])
        order = self._order
        if order is not None and order.id == id:
            return self._on_current(order, m)
        if kind == "prepare":
            if order is not None and order.phase != YIELDED:
                return self._refuse(m, "busy with %s; abort or resume it first" % order.id)
            self._order = _Order(id, m["mode"], self._begun, order)
            return {"type": "prepared", "id": id, "begun": self._begun}
        if kind == "abort":  # remembered: the prepare it overtook must not hold us
            return self._end(id, {"type": "aborted", "id": id})
        return self._refuse(m, "unknown id")

    def _on_current(self, o, m):
        kind = m["type"]
        if kind == "abort":
            if o.phase != HELD:
                return self._refuse(m, "committed to step %s" % o.commit)
            self._order = o.under
            return self._end(o.id, {"type": "aborted", "id": o.id})
        if kind == "resume":
            if o.mode != "yield" or (o.phase == HELD and o.under is not None):
                return self._refuse(m, "not a committed yield")
            if o.phase in (HELD, COMMITTED):  # its commit will find the order ended
                return self._end_resumed(o)
            if o.phase == YIELDING:
                o.resume = True
            elif o.phase == YIELDED:
                o.phase = RESUMING
            return None
        if m["mode"] != o.mode:
            return self._refuse(m, "prepared with mode " + o.mode)
        if kind == "prepare":
            return {"type": "prepared", "id": o.id, "begun": o.begun}
        return self._on_commit(o, m)

    def _on_commit(self, o, m):
        step = m.get("step", 0)
        if o.phase != HELD:
            if step != o.commit:
                return self._refuse(m, "already committed to step %s" % o.commit)
            if o.phase in (YIELDED, RESUMING):
                return self._yielded(o)
            if o.phase == STOPPED:
                return {"type": "stopped", "id": o.id, "step": self._done, "samples": self.samples}
            return None
        target = self._begun if self.sync == "none" else step
        if target < self._begun:
            return self._refuse(m, "step %d is below begun %d" % (step, self._begun))
        if o.under is not None and target != self._done:
            return self._refuse(m, "yielded at step %d; resume first" % self._done)
        o.phase, o.commit, o.step = COMMITTED, step, target
        if o.under is not None and o.mode == "yield":  # quiet already, only the id changes
            under, o.under, o.phase = o.under, None, YIELDED
            self._end(under.id, {"type": "resumed", "id": under.id, "step": self._done})
            return self._yielded(o)
        return None

    def _end_resumed(self, o):
        self._order = o.under
        return self._end(o.id, {"type": "resumed", "id": o.id, "step": self._done})

    def _end(self, id, answer):
        self._ended = self._ended[-(MAX_ENDED - 1):] + [(id, answer)]
        return answer

    def _refuse(self, m, reason):
        return {"type": "refused", "id": m.get("id") or "", "order": m.get("type") or "", "begun": self._begun, "reason": reason}

    def _yielded(self, o):
        return {"type": "yielded", "id": o.id, "step": self._done}

    def _progress(self):
        m = {"type": "step", "begun": self._begun, "done": self._done, "samples": self.samples}
        if self._loss is not None and math.isfinite(self._loss):
            m["loss"] = self._loss
        return m

    # -- the connection ------------------------------------------------------

    def _keep(self, message):
        with self._lock:
            self._seq += 1
            message["seq"] = self._seq
            self._unacked = self._unacked[-(MAX_UNACKED - 1):] + [message]
            self._send(message)
        return message

    def _send(self, message):
        """Send if there is a connection; else the next one's replay will."""
        if self._sock is None or message is None:
            return
        line = json.dumps(message, allow_nan=False).encode() + b"\n"
        try:
            if len(line) > MAX_LINE_BYTES:
                raise OSError("message too long")
            self._sock.sendall(line)
        except OSError:
            self._drop()

    def _drop(self):
        if self._sock is not None:
            try:
                self._sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            self._sock = None

    def _run(self):
        backoff = BACKOFF_MIN_S
        while True:
            sock = socket.socket(socket.AF_UNIX)
            try:
                sock.connect(self._path)
                sock.settimeout(None)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(2))
                with self._lock:
                    self._sock = sock
                    self._replay()
                for line in _lines(sock):
                    backoff = BACKOFF_MIN_S
                    with self._lock:
                        self._send(self._on(json.loads(line.decode("utf-8"))))
                        self._lock.notify_all()
            except (OSError, ValueError):
                pass
            with self._lock:
                self._sock = None
            sock.close()
            time.sleep(backoff)
            backoff = min(2 * backoff, BACKOFF_MAX_S)

    def _replay(self):
        self._send({
            "type": "hello", "version": VERSION, "job": self.job, "generation": self.generation,
            "rank": self.rank, "worldSize": self.world_size, "pid": os.getpid(), "sync": self.sync,
            "step": self._resumed_from, "samples": self._resumed_samples,
        })
        self._send(self._progress())
        self._send({"type": "phase", "phase": self._phase})
        for message in list(self._unacked):
            self._send(message)
        if self._order is not None:
            self._send({"type": "prepared", "id": self._order.id, "begun": self._order.begun})
            order = self._order
            while order is not None and order.phase != YIELDED:
                order = order.under
            if order is not None:
                self._send(self._yielded(order))


def _lines(sock):
    """Yield lines; a longer one than the limit, or the end, ends it."""
    buffer = b""
    while True:
        chunk = sock.recv(65536)
        if not chunk:
            return
        *whole, buffer = (buffer + chunk).split(b"\n")
        for line in whole:
            if line.strip():
                yield line
        if len(buffer) > MAX_LINE_BYTES:
            raise OSError("line too long")


def _timeval(seconds):
    import struct
    return struct.pack("ll", seconds, 0)


def _read_manifest(path):
    if not path:
        return None, ""
    with open(path, encoding="utf-8") as f:
        manifest = json.load(f)
    return manifest, os.path.join(os.path.dirname(os.path.abspath(path)), manifest.get("dir") or "")


def _digest(path):
    h = hashlib.sha256()
    with open(path, "rb") as f:
        for block in iter(lambda: f.read(1 << 20), b""):
            h.update(block)
    return "sha256:" + h.hexdigest()


def _quiet_cuda():
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()

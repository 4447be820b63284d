package rank

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The loop of the helper's own documentation, with a tiny state.
const pyLoop = `
import os, sys, time
import sluice
gang = sluice.attach(on_yield=lambda: print("quiet", flush=True), on_resume=lambda: print("active", flush=True))
state = [0]
for r, path in gang.shards():
    state = [int(open(path).read())]
print("start", gang.step, state[0], gang.samples, flush=True)
last = int(sys.argv[1])
for step in gang.steps(last=last):
    time.sleep(0.002)
    state[0] += step
    gang.report(loss=1.0 / step, samples=10)
    if gang.should_save(every=int(sys.argv[2])):
        path = os.path.join(gang.checkpoint_dir, "shard-%d" % step)
        with open(path, "w") as f:
            f.write(str(state[0]))
        gang.saved(path)
print("end", gang.step, state[0], flush=True)
`

func python(t *testing.T) string {
	for _, name := range []string{"/usr/bin/python3", "python3"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("python3 is missing")
	return ""
}

// pyRank starts the loop; the returned function waits for its exit and output.
func pyRank(t *testing.T, dir, socket, resume string, args ...string) func() (string, error) {
	t.Helper()
	interpreter := python(t)
	if err := os.WriteFile(filepath.Join(dir, "sluice.py"), Helper, 0o600); err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(dir, "train.py")
	if err := os.WriteFile(script, []byte(pyLoop), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(interpreter, append([]string{script}, args...)...)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+dir, "PYTHONDONTWRITEBYTECODE=1", "SLUICE_SOCKET="+socket, "SLUICE_JOB=py",
		"SLUICE_GENERATION=2", "SLUICE_CHECKPOINT_DIR="+dir, "SLUICE_RESUME="+resume, "RANK=0", "WORLD_SIZE=1")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { cmd.Process.Kill() })
	return func() (string, error) {
		select {
		case err := <-ended:
			return out.String(), err
		case <-time.After(30 * time.Second):
			cmd.Process.Kill()
			<-ended
			return out.String(), os.ErrDeadlineExceeded
		}
	}
}

// A Python rank yields, resumes, is stopped at the agreed step, and its shard
// carries the next generation to the very end, as if nothing had happened.
func TestPythonRankStopsAndResumes(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "s")
	r := newRecorder()
	serve(t, socket, r)
	wait := pyRank(t, dir, socket, "", "1000000", "0")
	r.await(t, "some steps", func(m Message) bool { return m.Type == TypeStep && m.Done >= 5 })
	h := r.await(t, "hello", is(TypeHello))
	if h.PID != r.conn(t).Peer().PID || h.Job != "py" || h.Generation != 2 {
		t.Fatalf("%+v", h)
	}
	send := func(m Message) {
		t.Helper()
		if err := r.conn(t).Send(m); err != nil {
			t.Fatal(err)
		}
	}
	send(Message{Type: TypePrepare, ID: "y", Mode: ModeYield})
	p := r.await(t, "prepared", is(TypePrepared))
	send(Message{Type: TypeCommit, ID: "y", Mode: ModeYield, Step: p.Begun + 2})
	if y := r.await(t, "yielded", is(TypeYielded)); y.Step != p.Begun+2 {
		t.Fatalf("%+v after %+v", y, p)
	}
	send(Message{Type: TypePrepare, ID: "y", Mode: ModeYield}) // a repeat, harmless
	send(Message{Type: TypeResume, ID: "y"})
	r.await(t, "resumed", is(TypeResumed))

	send(Message{Type: TypePrepare, ID: "s", Mode: ModeStop})
	p = r.await(t, "prepared s", func(m Message) bool { return m.Type == TypePrepared && m.ID == "s" })
	send(Message{Type: TypeCommit, ID: "s", Mode: ModeStop, Step: 1})
	r.await(t, "refusal", is(TypeRefused))
	send(Message{Type: TypeCommit, ID: "s", Mode: ModeStop, Step: p.Begun})
	out, err := wait()
	if err != nil || strings.Contains(out, "end") || !strings.Contains(out, "quiet\nactive\n") {
		t.Fatalf("%v\n%s", err, out)
	}
	stopped := r.await(t, "stopped", is(TypeStopped))
	shard := r.await(t, "shard", is(TypeShard))
	if stopped.Step != p.Begun || shard.Step != p.Begun || shard.Samples != 10*p.Begun || stopped.ID != "s" {
		t.Fatalf("%+v %+v", stopped, shard)
	}

	manifest := filepath.Join(dir, "manifest.json")
	err = WriteManifest(manifest, Manifest{Job: "py", Generation: 2, Step: shard.Step, World: 1, Samples: shard.Samples,
		Shards: []Shard{{File: shard.File, Bytes: shard.Bytes, Digest: shard.Digest, Scope: shard.Scope}}})
	if err != nil {
		t.Fatal(err)
	}
	last := shard.Step + 20
	wait = pyRank(t, dir, socket, manifest, strconv.FormatInt(last, 10), "7")
	out, err = wait()
	if err != nil || !strings.Contains(out, "end "+strconv.FormatInt(last, 10)+" "+strconv.FormatInt(last*(last+1)/2, 10)) {
		t.Fatalf("%v\n%s", err, out)
	}
	if f := r.await(t, "finished", is(TypeFinished)); f.Step != last || f.Samples != 10*last {
		t.Fatalf("%+v", f)
	}

	os.WriteFile(shard.File, []byte("9"), 0o600)
	if out, err := pyRank(t, dir, socket, manifest, "5", "0")(); err == nil || !strings.Contains(out, "Torn") {
		t.Fatalf("%v\n%s", err, out)
	}
}

// A held Python rank stays held while its agent is away, and the next agent
// finds it so.
func TestPythonRankOutlivesItsAgent(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "s")
	first := newRecorder()
	s, err := Listen(socket, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	go s.Serve(first)
	wait := pyRank(t, dir, socket, "", "1000000", "0")
	first.await(t, "some steps", func(m Message) bool { return m.Type == TypeStep && m.Done >= 3 })
	first.conn(t).Send(Message{Type: TypePrepare, ID: "s", Mode: ModeStop})
	p := first.await(t, "prepared", is(TypePrepared))
	s.Close()
	second := newRecorder()
	serve(t, socket, second)
	if again := second.await(t, "prepared again", is(TypePrepared)); again.Begun != p.Begun {
		t.Fatalf("%+v %+v", p, again)
	}
	second.conn(t).Send(Message{Type: TypeCommit, ID: "s", Mode: ModeStop, Step: p.Begun})
	if out, err := wait(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if m := second.await(t, "stopped", is(TypeStopped)); m.Step != p.Begun {
		t.Fatalf("%+v", m)
	}
}

func TestPythonRankRunsWithoutSluice(t *testing.T) {
	dir := t.TempDir()
	out, err := pyRank(t, dir, "", "", "20", "0")()
	if err != nil || !strings.Contains(out, "end 20 210") {
		t.Fatalf("%v\n%s", err, out)
	}
}

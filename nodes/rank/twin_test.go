package rank

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// pyTwin applies the same operations to sluice.py's state machine, without a
// socket, and prints what it says: one line an operation.
const pyTwin = `
import json, sys
import sluice
gang = None
def said(m):
    return [m["type"], m.get("id", ""), m.get("step", 0) if m["type"] != "refused" else 0, m.get("begun", 0)]
for line in sys.stdin:
    op = json.loads(line)
    if op["op"] == "new":
        gang = sluice.attach(sync=op["sync"], environ={})
        out = []
    elif op["op"] == "on":
        m = gang._on(op["m"])
        out = [] if m is None else [said(m)]
    elif op["op"] == "done":
        if gang._done < gang._begun:
            gang._done = gang._begun
        out = []
    else:
        decision = gang._decide()
        out = [[decision, "", 0, gang._begun]]
        if decision == "yield":
            o = gang._order
            gang._now_yielded()
            out.append(said(gang._yielded(o)))
        elif decision == "resume":
            o = gang._order
            gang._now_resumed()
            out.append(["resumed", o.id, gang._done, 0])
    print(json.dumps(out, separators=(",", ":")))
`

type twinOp struct {
	Op   string   `json:"op"`
	Sync Sync     `json:"sync,omitempty"`
	M    *Message `json:"m,omitempty"`
}

// apply does one operation to the Go machine and returns the line that the
// Python one has to print.
func (op twinOp) apply(m *Machine) string {
	out := [][]any{}
	say := func(ms ...Message) {
		for _, s := range ms {
			step := s.Step
			if s.Type == TypeRefused {
				step = 0
			}
			out = append(out, []any{s.Type, s.ID, step, s.Begun})
		}
	}
	switch op.Op {
	case "on":
		say(m.On(*op.M)...)
	case "done":
		if p := m.Progress(); p.Done < p.Begun {
			m.Done(p.Begun, 1, 0)
		}
	case "begin":
		d, err := m.Begin(m.Progress().Begun + 1)
		if err != nil {
			panic(err)
		}
		name := []string{"proceed", "wait", "yield", "resume", "save"}[d]
		out = append(out, []any{name, "", 0, m.Progress().Begun})
		switch d {
		case Yield:
			say(m.Yielded()...)
		case Resume:
			say(m.Resumed()...)
		}
	}
	b, _ := json.Marshal(out)
	return string(b)
}

// Both clients are one state machine: the same answers to the same orders, over
// seeds of random and mostly improper ones.
func TestPythonAndGoAnswerAlike(t *testing.T) {
	interpreter := python(t)
	rng := rand.New(rand.NewPCG(7, 7))
	var in, want bytes.Buffer
	var trace []string
	for range 400 {
		sync := SyncAll
		if rng.IntN(4) == 0 {
			sync = SyncNone
		}
		m := NewMachine(Message{WorldSize: 1, Sync: sync})
		emit := func(op twinOp) {
			b, _ := json.Marshal(op)
			line := op.apply(m)
			fmt.Fprintf(&in, "%s\n", b)
			fmt.Fprintf(&want, "%s\n", line)
			trace = append(trace, string(b))
		}
		emit(twinOp{Op: "new", Sync: sync})
		for range 40 {
			if rng.IntN(3) == 0 {
				emit(twinOp{Op: "done"})
				emit(twinOp{Op: "begin"})
				continue
			}
			o := Message{Type: []Type{TypePrepare, TypeCommit, TypeAbort, TypeResume}[rng.IntN(4)], ID: string('a' + rune(rng.IntN(5)))}
			if o.Type == TypePrepare || o.Type == TypeCommit {
				o.Mode = []Mode{ModeYield, ModeYield, ModeStop}[rng.IntN(3)]
			}
			if o.Type == TypeCommit {
				o.Step = m.Progress().Begun + int64(rng.IntN(3)-rng.IntN(2))
				o.Step = max(o.Step, 0)
			}
			emit(twinOp{Op: "on", M: &o})
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "sluice.py"), Helper, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(interpreter, "-c", pyTwin)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+dir, "PYTHONDONTWRITEBYTECODE=1")
	cmd.Stdin, cmd.Stderr = &in, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	got, wanted := strings.Split(string(out), "\n"), strings.Split(want.String(), "\n")
	for i, w := range wanted {
		if i >= len(got) || got[i] != w {
			t.Fatalf("after\n%s\npython says %s, go %s", strings.Join(trace[max(0, i-40):i+1], "\n"), got[i], w)
		}
	}
}

package rank

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"errors"
)

func machineAt(step int64) *Machine {
	return NewMachine(Message{WorldSize: 1, Sync: SyncAll, Step: step})
}

func one(t *testing.T, got []Message, typ Type) Message {
	t.Helper()
	if len(got) != 1 || got[0].Type != typ {
		t.Fatalf("want one %s, got %+v", typ, got)
	}
	return got[0]
}

func TestKnownOrdersGetTheirAnswerAgain(t *testing.T) {
	m := machineAt(10)
	prepare := Message{Type: TypePrepare, ID: "a", Mode: ModeYield}
	commit := Message{Type: TypeCommit, ID: "a", Mode: ModeYield, Step: 11}
	m.Begin(11)
	if p := one(t, m.On(prepare), TypePrepared); p.Begun != 11 {
		t.Fatal(p)
	}
	if p := one(t, m.On(prepare), TypePrepared); p.Begun != 11 {
		t.Fatal(p)
	}
	one(t, m.On(Message{Type: TypePrepare, ID: "b", Mode: ModeYield}), TypeRefused) // busy
	one(t, m.On(Message{Type: TypeCommit, ID: "a", Mode: ModeYield, Step: 10}), TypeRefused)
	if got := m.On(commit); len(got) != 0 {
		t.Fatal(got)
	}
	one(t, m.On(Message{Type: TypeCommit, ID: "a", Mode: ModeYield, Step: 12}), TypeRefused)
	one(t, m.On(Message{Type: TypeAbort, ID: "a"}), TypeRefused)
	m.Done(11, 1, 1)
	if d, _ := m.Begin(12); d != Yield {
		t.Fatal(d)
	}
	one(t, m.Yielded(), TypeYielded)
	one(t, m.On(commit), TypeYielded)
	m.On(Message{Type: TypeResume, ID: "a"})
	if d, _ := m.Begin(12); d != Resume {
		t.Fatal(d)
	}
	one(t, m.Resumed(), TypeResumed)
	// Late copies of an ended order neither hold the rank nor hear "yielded".
	one(t, m.On(prepare), TypeResumed)
	one(t, m.On(commit), TypeResumed)
	if d, _ := m.Begin(12); d != Proceed {
		t.Fatal(d)
	}
}

func TestAbortThatOvertakesItsPrepare(t *testing.T) {
	m := machineAt(0)
	one(t, m.On(Message{Type: TypeAbort, ID: "a"}), TypeAborted)
	one(t, m.On(Message{Type: TypePrepare, ID: "a", Mode: ModeStop}), TypeRefused)
	if d, _ := m.Begin(1); d != Proceed {
		t.Fatal(d)
	}
}

// A yielded gang whose GPUs' memory is wanted too is stopped where it stands; an
// abort of that leaves it yielded.
func TestStopOfAYieldedRank(t *testing.T) {
	m := machineAt(3)
	m.On(Message{Type: TypePrepare, ID: "y", Mode: ModeYield})
	m.On(Message{Type: TypeCommit, ID: "y", Mode: ModeYield, Step: 3})
	m.Begin(4)
	m.Yielded()
	stop := Message{Type: TypePrepare, ID: "s", Mode: ModeStop}
	if p := one(t, m.On(stop), TypePrepared); p.Begun != 3 {
		t.Fatal(p)
	}
	one(t, m.On(Message{Type: TypeAbort, ID: "s"}), TypeAborted)
	if d, _ := m.Begin(4); d != Wait {
		t.Fatal(d)
	}
	stop.ID = "s2"
	m.On(stop)
	replay := m.Replay()
	if last := replay[len(replay)-1]; last.Type != TypeYielded || last.ID != "y" {
		t.Fatalf("%+v", replay)
	}
	one(t, m.On(Message{Type: TypeCommit, ID: "s2", Mode: ModeStop, Step: 5}), TypeRefused)
	m.On(Message{Type: TypeCommit, ID: "s2", Mode: ModeStop, Step: 3})
	if d, _ := m.Begin(4); d != Save {
		t.Fatal(d)
	}
}

func TestUnackedIsBoundedAndFinishedAnswersAll(t *testing.T) {
	m := machineAt(0)
	for range MaxUnacked + 5 {
		m.Shard(Message{File: "f"})
	}
	if m.Unacked() != MaxUnacked || m.Dropped() != 5 {
		t.Fatal(m.Unacked(), m.Dropped())
	}
	m.On(Message{Type: TypeAck, Seq: MaxUnacked})
	if m.Unacked() != 5 {
		t.Fatal(m.Unacked())
	}
	m.Finished(0)
	one(t, m.On(Message{Type: TypePrepare, ID: "a", Mode: ModeStop}), TypeFinished)
	if _, err := m.Begin(1); !errors.Is(err, ErrStep) {
		t.Fatal(err)
	}
	for i := range MaxEnded + 3 {
		machineAt(0).end(strings.Repeat("x", i+1), Message{})
	}
}

func TestMessagesOnTheWire(t *testing.T) {
	nan := math.NaN()
	line, err := Message{Type: TypeStep, Begun: 2, Done: 1, Loss: &nan}.Append(nil)
	if err != nil || strings.Contains(string(line), "loss") {
		t.Fatal(string(line), err)
	}
	if _, err := (Message{Type: TypeShard, File: strings.Repeat("x", MaxLineBytes)}).Append(nil); !errors.Is(err, ErrTooLong) {
		t.Fatal(err)
	}
	for _, bad := range []string{``, `[]`, `{}`, `{"type":"what"}`, `{"type":"step","begun":1,"done":2}`,
		`{"type":"hello","version":2,"worldSize":1,"sync":"all"}`, `{"type":"commit","id":"a"}`, `{"type":"prepared"}`,
		`{"type":"phase","phase":"nap"}`, `{"type":"shard","file":"x","digest":"md5:0","scope":"node"}`, `{"type":"ack","seq":-1}`} {
		if _, err := Parse([]byte(bad)); !errors.Is(err, ErrMessage) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if _, err := Parse([]byte(`{"type":"hello","version":1,"worldSize":1,"sync":"all","later":{}}`)); err != nil {
		t.Fatal(err)
	}
}

func FuzzMachine(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9})
	f.Fuzz(func(t *testing.T, ops []byte) {
		m := machineAt(0)
		types := []Type{TypePrepare, TypeCommit, TypeAbort, TypeResume, TypeAck}
		for i := 0; i+1 < len(ops); i += 2 {
			op, arg := ops[i], ops[i+1]
			p := m.Progress()
			switch op % 8 {
			case 0, 1, 2, 3, 4:
				mode := ModeYield
				if arg&1 == 1 {
					mode = ModeStop
				}
				m.On(Message{Type: types[op%8], ID: string('a' + rune(arg%4)), Mode: mode, Step: p.Begun + int64(arg%3)})
			case 5, 6:
				if p.Done < p.Begun {
					m.Done(p.Begun, 1, p.Begun)
				}
				switch d, _ := m.Begin(m.Progress().Begun + 1); d {
				case Yield:
					m.Yielded()
				case Resume:
					m.Resumed()
				}
			case 7:
				m.Shard(Message{File: "f"})
			}
			if p = m.Progress(); p.Done > p.Begun || p.Begun > p.Done+1 || len(m.ended) > MaxEnded {
				t.Fatalf("%+v", m)
			}
		}
	})
}

func TestManifestRefusesTornCheckpoints(t *testing.T) {
	dir := t.TempDir()
	m := Manifest{Job: "j", Step: 9, World: 2, Samples: 90}
	for r, body := range []string{"aaaa", "bb"} {
		name := filepath.Join(dir, string('0'+rune(r)))
		if err := WriteFileSync(name, []byte(body)); err != nil {
			t.Fatal(err)
		}
		m.Shards = append(m.Shards, Shard{File: filepath.Base(name), Bytes: int64(len(body)), Digest: Digest([]byte(body)), Scope: ScopeNode, Rank: r})
	}
	path := filepath.Join(dir, "manifest.json")
	if err := WriteManifest(path, m); err != nil {
		t.Fatal(err)
	}
	got, err := ReadManifest(path)
	if err != nil || got.VerifyDigests() != nil || got.Step != 9 || got.Dir != dir {
		t.Fatal(got, err)
	}
	os.WriteFile(filepath.Join(dir, "1"), []byte("bc"), 0o600)
	if err := got.VerifySizes(); err != nil {
		t.Fatal(err)
	}
	if err := got.VerifyDigests(); !errors.Is(err, ErrTorn) {
		t.Fatal(err)
	}
	os.Truncate(filepath.Join(dir, "1"), 0)
	if err := got.VerifySizes(); !errors.Is(err, ErrTorn) {
		t.Fatal(err)
	}
	os.Remove(filepath.Join(dir, "1"))
	if err := got.VerifySizes(); !errors.Is(err, ErrTorn) {
		t.Fatal(err)
	}
	m.Shards = m.Shards[:1]
	if err := WriteManifest(path, m); !errors.Is(err, ErrTorn) {
		t.Fatal(err)
	}
	os.WriteFile(path, []byte(`{"job":`), 0o600)
	if _, err := ReadManifest(path); !errors.Is(err, ErrTorn) {
		t.Fatal(err)
	}
}

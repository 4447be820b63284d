package floor

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"sluice/nodes/rank"
	"sluice/nodes/registry"
)

// status is what the tests read of GET /v1/status.
type status struct {
	Models []modelStatus `json:"models"`
	Jobs   []jobStatus   `json:"jobs"`
	GPUs   []struct {
		UUID     string `json:"uuid"`
		Holder   string `json:"holder"`
		Fenced   string `json:"fenced"`
		Reserved string `json:"reserved"`
	} `json:"gpus"`
	Nodes []struct {
		ID       string `json:"id"`
		State    string `json:"state"`
		SilentMs int64  `json:"silentMs"`
	} `json:"nodes"`
	Books struct {
		BalanceSeconds float64 `json:"balanceSeconds"`
	} `json:"books"`
}

type modelStatus struct {
	Name     string          `json:"name"`
	Ready    int             `json:"ready"`
	Replicas []replicaStatus `json:"replicas"`
}

type replicaStatus struct {
	ID    string `json:"id"`
	Node  string `json:"node"`
	Phase string `json:"phase"`
	Addr  string `json:"addr"`
}

type jobStatus struct {
	Name       string                 `json:"name"`
	Phase      string                 `json:"phase"`
	Reason     string                 `json:"reason"`
	Generation int64                  `json:"generation"`
	World      int                    `json:"world"`
	Step       int64                  `json:"step"`
	RankPhase  string                 `json:"rankPhase"`
	SavedStep  *int64                 `json:"savedStep"`
	LostSteps  int64                  `json:"lostSteps"`
	Restarts   int                    `json:"restarts"`
	Ledger     []registry.LedgerEntry `json:"ledger"`
	Manifests  []json.RawMessage      `json:"manifests"`
}

func (j *jobStatus) ended() bool { return registry.JobPhase(j.Phase).Ended() }

func (j *jobStatus) saved() int64 {
	if j.SavedStep == nil {
		return 0
	}
	return *j.SavedStep
}

func (s *site) status() *status {
	s.t.Helper()
	st := &status{}
	s.must("GET", "/v1/status", nil, st)
	return st
}

func (s *site) job(name string) *jobStatus {
	s.t.Helper()
	j := &jobStatus{}
	s.must("GET", "/v1/jobs/"+name, nil, j)
	return j
}

func (s *site) model(name string) *modelStatus {
	s.t.Helper()
	m := &modelStatus{}
	s.must("GET", "/v1/models/"+name, nil, m)
	return m
}

// chat is a model whose engines each write a text of their own: the seed is the
// port, so a stream tells which replica it runs on.
func (s *site) chat(replicas int) registry.ModelSpec {
	return registry.ModelSpec{Name: "chat", MinReplicas: replicas, MaxReplicas: replicas, ActiveBytes: 60 << 30, ResidentBytes: 2 << 30,
		Command: []string{s.exe, "engine", "--listen", "127.0.0.1:{{port}}", "--seed", "{{port}}", "--served-model", "chat", "--speed", strconv.Itoa(speed),
			"--load-ms", "2000", "--active-memory", "60GiB", "--resident-memory", "2GiB", "--stream-interval", "8"}}
}

// tune is an elastic job that writes down its own steps.
func (s *site) tune(minWorld, maxWorld, multiple int, extra ...string) registry.JobSpec {
	return registry.JobSpec{Name: "tune", MinWorld: minWorld, MaxWorld: maxWorld, WorldMultiple: multiple, ActiveBytes: 60 << 30, ResidentBytes: 20 << 30,
		MaxRestarts: 50, GraceMs: 30_000,
		Command: append([]string{s.exe, "trainer", "--micro-batches", "24", "--micro-ms", "5", "--max-steps", "0", "--scope", "shared",
			"--active-memory", "60GiB", "--resident-memory", "20GiB", "--step-log", s.stepLog()}, extra...)}
}

func (s *site) stepLog() string { return s.dir + "/steps" }

// running waits until the job runs, at least so large, and until its ranks have
// done more than after steps.
func (s *site) running(world int, after int64) *jobStatus {
	s.t.Helper()
	var j *jobStatus
	s.await("the job runs", func() error {
		if j = s.job("tune"); j.Phase != "running" || j.World < world || j.Step <= after {
			return fmt.Errorf("phase %s (%s), world %d, step %d; want running, %d ranks, beyond step %d", j.Phase, j.Reason, j.World, j.Step, world, after)
		}
		return nil
	})
	return j
}

func (s *site) ready(replicas int) *modelStatus {
	s.t.Helper()
	var m *modelStatus
	s.await("the model serves", func() error {
		if m = s.model("chat"); m.Ready != replicas || len(m.Replicas) != replicas {
			return fmt.Errorf("%d of %d replicas are ready, want %d", m.Ready, len(m.Replicas), replicas)
		}
		return nil
	})
	return m
}

// connected waits until every node's agent has been heard since a moment.
func (s *site) connected(n int, since time.Time) {
	s.t.Helper()
	s.await("agents are heard", func() error {
		st, heard := s.status(), 0
		for _, n := range st.Nodes {
			if n.State == "ready" && n.SilentMs < time.Since(since).Milliseconds() {
				heard++
			}
		}
		if heard != n {
			return fmt.Errorf("%d of %d", heard, n)
		}
		return nil
	})
}

var errMoved = errors.New("the manifests moved on")

// manifests verifies every kept checkpoint, byte by byte, and returns the
// current one's step. One that is replaced while we read is read again.
func (s *site) manifests(when string) (step int64) {
	s.t.Helper()
	s.await("the kept checkpoints are whole", func() error {
		j := s.job("tune")
		if len(j.Manifests) == 0 {
			return errors.New("no manifest yet")
		}
		step = 0
		for _, raw := range j.Manifests {
			var m rank.Manifest
			if err := json.Unmarshal(raw, &m); err != nil {
				s.t.Fatal(err)
			}
			step = max(step, m.Step)
			if err := m.VerifyDigests(); err != nil {
				if s.job("tune").saved() != j.saved() {
					return errMoved
				}
				s.t.Fatalf("%s: the manifest of step %d: %v", when, m.Step, err)
			}
		}
		return nil
	})
	return step
}

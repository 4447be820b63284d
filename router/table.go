package router

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrTable is wrapped by every error of NewTable.
var ErrTable = errors.New("router: bad table")

// Limits of a table.
const (
	MaxModels            = 4096
	MaxReplicasInTable   = 1 << 16
	MaxVersions          = 16 // of one model
	MaxInFlightOfReplica = 1 << 16
)

// Replica is one running engine of one version, ready to serve. Replicas that load, sleep or drain are not in a table.
type Replica struct {
	ID            string
	Addr          string // host:port of its HTTP API
	Node          string
	Model         string // set by NewTable
	Version       string
	UpstreamModel string // the name the engine serves it under; empty: Model
	AgentAddr     string // agent that leases it; empty: no lease is needed
	MaxInFlight   int    // requests at once, above 0: beyond it they wait here, not in the engine
	External      bool   // somebody else's engine: never slept or stopped by us
	Slot          int    // index of its load counter, 0 to Table.Slots()-1; set by NewTable
}

// VersionWeight is the share of traffic of one version.
type VersionWeight struct {
	Version string
	Weight  int // 0: no traffic while a version with weight can serve
}

// Model is a served name with its replicas. A model without replicas is known, but nothing serves it now.
type Model struct {
	Name     string
	Aliases  []string
	Adapters []string // LoRA adapters, by their names at the engine
	Speaks   []string // APIs that not every engine has: "messages", "responses"
	// RequestTimeoutMs bounds a request, FirstTokenMs each try up to its first token; 0: the gateway's own limits.
	RequestTimeoutMs int64
	FirstTokenMs     int64
	Current          string          // the version that new replicas run, known without any; may be empty
	Versions         []VersionWeight // empty: all versions alike
	Replicas         []Replica

	groups      []group // replicas of one version are neighbours
	totalWeight int
	known       []string // versions that requests may name
}

type group struct{ from, to, weight int }

// Capacity is the sum of MaxInFlight.
func (m *Model) Capacity() int {
	sum := 0
	for i := range m.Replicas {
		sum += m.Replicas[i].MaxInFlight
	}
	return sum
}

// Table is an immutable routing table. The zero value, and nil, know no model. Safe for concurrent reading; replace it,
// never change it.
type Table struct {
	models   []Model
	byName   map[string]*Model
	adapters map[string]Target // by an adapter's name alone
	replicas []*Replica        // by slot
}

// NewTable checks and copies models. Names, aliases and adapters are unique, replica ids too.
func NewTable(models []Model) (*Table, error) {
	if len(models) > MaxModels {
		return nil, fmt.Errorf("%w: %d models; at most %d", ErrTable, len(models), MaxModels)
	}
	t := &Table{models: make([]Model, len(models)), byName: make(map[string]*Model), adapters: make(map[string]Target)}
	ids := make(map[string]bool)
	for i := range models {
		m := &t.models[i]
		*m = models[i]
		m.Aliases, m.Versions = slices.Clone(m.Aliases), slices.Clone(m.Versions)
		m.Adapters, m.Speaks = slices.Clone(m.Adapters), slices.Clone(m.Speaks)
		m.Replicas = slices.Clone(m.Replicas)
		if err := t.addNames(m); err != nil {
			return nil, err
		}
		if err := t.addReplicas(m, ids); err != nil {
			return nil, fmt.Errorf("model %s: %w", m.Name, err)
		}
	}
	return t, nil
}

func (t *Table) addNames(m *Model) error {
	for _, name := range append([]string{m.Name}, m.Aliases...) {
		if name == "" {
			return fmt.Errorf("%w: a model without a name", ErrTable)
		}
		if _, taken := t.byName[name]; taken {
			return fmt.Errorf("%w: the name %q is used twice", ErrTable, name)
		}
		t.byName[name] = m
	}
	for _, name := range m.Adapters {
		if name == "" {
			return fmt.Errorf("%w: model %s has an adapter without a name", ErrTable, m.Name)
		}
		if _, taken := t.adapters[name]; taken {
			return fmt.Errorf("%w: the adapter %q is there twice", ErrTable, name)
		}
		t.adapters[name] = Target{Model: m, Adapter: name}
	}
	return nil
}

func (t *Table) addReplicas(m *Model, ids map[string]bool) error {
	if len(m.Versions) > MaxVersions {
		return fmt.Errorf("%w: %d versions; at most %d", ErrTable, len(m.Versions), MaxVersions)
	}
	if len(t.replicas)+len(m.Replicas) > MaxReplicasInTable {
		return fmt.Errorf("%w: more than %d replicas", ErrTable, MaxReplicasInTable)
	}
	slices.SortStableFunc(m.Replicas, func(a, b Replica) int { return strings.Compare(a.Version, b.Version) })
	for i := range m.Replicas {
		r := &m.Replicas[i]
		switch {
		case r.ID == "" || r.Addr == "":
			return fmt.Errorf("%w: replica %q at %q needs an id and an address", ErrTable, r.ID, r.Addr)
		case ids[r.ID]:
			return fmt.Errorf("%w: replica %s is there twice", ErrTable, r.ID)
		case r.MaxInFlight < 1 || r.MaxInFlight > MaxInFlightOfReplica:
			return fmt.Errorf("%w: replica %s has maxInFlight %d; want 1 to %d", ErrTable, r.ID, r.MaxInFlight, MaxInFlightOfReplica)
		}
		ids[r.ID] = true
		r.Model, r.Slot = m.Name, len(t.replicas)
		if r.UpstreamModel == "" {
			r.UpstreamModel = m.Name
		}
		t.replicas = append(t.replicas, r)
	}
	m.learnVersions()
	return m.group()
}

// group finds the stretches of one version and their weights.
func (m *Model) group() error {
	m.groups, m.totalWeight = nil, 0
	for _, v := range m.Versions {
		if v.Weight < 0 {
			return fmt.Errorf("%w: version %s has weight %d", ErrTable, v.Version, v.Weight)
		}
	}
	if len(m.Versions) == 0 {
		if len(m.Replicas) > 0 {
			m.groups, m.totalWeight = []group{{0, len(m.Replicas), 1}}, 1
		}
		return nil
	}
	for from := 0; from < len(m.Replicas); {
		to, version := from, m.Replicas[from].Version
		for to < len(m.Replicas) && m.Replicas[to].Version == version {
			to++
		}
		weight := 0
		for _, v := range m.Versions {
			if v.Version == version {
				weight = v.Weight
			}
		}
		m.groups = append(m.groups, group{from, to, weight})
		m.totalWeight += weight
		from = to
	}
	return nil
}

// Lookup finds a model by name or alias; Resolve knows more spellings. The model belongs to the table: do not change it.
func (t *Table) Lookup(name string) (*Model, bool) {
	if t == nil {
		return nil, false
	}
	m, ok := t.byName[name]
	return m, ok
}

// Models returns all models; they belong to the table.
func (t *Table) Models() []Model {
	if t == nil {
		return nil
	}
	return t.models
}

// Slots is how many load counters the table needs.
func (t *Table) Slots() int {
	if t == nil {
		return 0
	}
	return len(t.replicas)
}

// Replica returns the replica of a slot; it belongs to the table.
func (t *Table) Replica(slot int) *Replica { return t.replicas[slot] }

package registry

import (
	"errors"
	"fmt"
)

// What Apply refuses. The state is unchanged then.
var (
	ErrStale    = errors.New("the command was made on an older phase")
	ErrUnknown  = errors.New("no such object")
	ErrExists   = errors.New("an object of that name exists")
	ErrConflict = errors.New("the command would break an invariant")
	ErrEmpty    = errors.New("the command says nothing")
)

// New returns a state without any object but the tenant "default".
func New() *State {
	s := &State{
		Tenants: map[string]*TenantSpec{"default": {Name: "default", Weight: 1}},
		Keys:    map[string]*KeySpec{}, Tokens: map[string]*TokenSpec{},
		Models: map[string]*Model{}, Replicas: map[string]*Replica{}, Jobs: map[string]*Job{},
		Nodes: map[string]*Node{}, GPUs: map[string]*GPU{},
	}
	s.Books.TenantMs = map[string]*[bookStates]int64{}
	s.seen = map[string]struct{}{}
	return s
}

// NewReplicaID names the k-th replica (from 1) that a plan on this state makes.
func (s *State) NewReplicaID(model string, k int) string {
	return model + "-" + itoa(s.NextID+int64(k))
}

// Apply takes one command. It returns what changed, or an error and no change.
// A command whose id was applied before returns nothing and changes nothing.
func (s *State) Apply(c *Command) ([]Event, error) {
	if c.ID != "" {
		if _, dup := s.seen[c.ID]; dup {
			return nil, nil
		}
	}
	at := max(c.AtMs, s.LastMs)
	ev, err := s.apply(c, at)
	if err != nil {
		return nil, err
	}
	s.Version++
	s.LastMs = at
	s.remember(c.ID)
	for i := range ev {
		ev[i].AtMs = at
		if ev[i].Author == "" {
			ev[i].Author = c.Author
		}
		if ev[i].Reason == "" {
			ev[i].Reason = c.Reason
		}
	}
	return ev, nil
}

func (s *State) remember(id string) {
	if id == "" {
		return
	}
	s.seen[id] = struct{}{}
	s.Seen = append(s.Seen, id)
	if len(s.Seen) > maxSeenIDs {
		delete(s.seen, s.Seen[0])
		s.Seen = append(s.Seen[:0], s.Seen[1:]...)
	}
}

func (s *State) apply(c *Command, at int64) ([]Event, error) {
	switch {
	case c.PutTenant != nil:
		return s.putTenant(c.PutTenant)
	case c.DeleteTenant != nil:
		return s.deleteTenant(c.DeleteTenant.Name)
	case c.PutKey != nil:
		return s.putKey(c.PutKey)
	case c.DeleteKey != nil:
		return deleteFrom(s.Keys, c.DeleteKey.Name, "key")
	case c.SetLimits != nil:
		return s.setLimits(c.SetLimits)
	case c.AddUsage != nil:
		return nil, s.Usage.add(c.AddUsage.Rows, at)
	case c.PutToken != nil:
		s.Tokens[c.PutToken.ID] = c.PutToken
		return []Event{{Kind: "token", Object: c.PutToken.ID, To: c.PutToken.Role}}, nil
	case c.DeleteToken != nil:
		return deleteFrom(s.Tokens, c.DeleteToken.Name, "token")
	case c.PutModel != nil:
		return s.putModel(c.PutModel)
	case c.DeleteModel != nil:
		return s.deleteModel(c.DeleteModel.Name)
	case c.SubmitJob != nil:
		return s.submitJob(c.SubmitJob, at)
	case c.JobWant != nil:
		return s.jobWant(c.JobWant)
	default:
		return s.applyFloor(c, at)
	}
}

// applyFloor takes the commands that move GPUs.
func (s *State) applyFloor(c *Command, at int64) ([]Event, error) {
	switch {
	case c.NodeSeen != nil:
		return s.nodeSeen(c.NodeSeen, at)
	case c.NodeLost != nil:
		return s.nodeLost(c.NodeLost, at)
	case c.NodeMark != nil:
		return s.nodeMark(c.NodeMark)
	case c.GPUMark != nil:
		return s.gpuMark(c.GPUMark, at)
	case c.Reclaim != nil:
		return s.reclaim(c.Reclaim, at)
	case c.ReplicaPhase != nil:
		return s.replicaPhase(c.ReplicaPhase, at)
	case c.ReplicaGone != nil:
		return s.replicaGone(c.ReplicaGone, at)
	case c.JobPlace != nil:
		return s.jobPlace(c.JobPlace, at)
	case c.JobStop != nil:
		return s.jobStop(c.JobStop, at)
	case c.JobCommit != nil:
		return s.jobCommit(c.JobCommit)
	case c.JobPhase != nil:
		return s.jobPhase(c.JobPhase, at)
	case c.JobEnding != nil:
		return s.jobEnding(c.JobEnding, at)
	case c.RankGone != nil:
		return s.rankGone(c.RankGone, at)
	case c.HolderGone != nil:
		return s.holderGone(c.HolderGone, at)
	case c.Manifest != nil:
		return s.manifest(c.Manifest, at)
	}
	return nil, ErrEmpty
}

func deleteFrom[T any](m map[string]T, name, kind string) ([]Event, error) {
	if _, ok := m[name]; !ok {
		return nil, fmt.Errorf("%s %q: %w", kind, name, ErrUnknown)
	}
	delete(m, name)
	return []Event{{Kind: kind, Object: name, To: "deleted"}}, nil
}

func (s *State) putTenant(t *TenantSpec) ([]Event, error) {
	c := *t
	if c.Weight == 0 {
		c.Weight = 1
	}
	s.Tenants[t.Name] = &c
	return []Event{{Kind: "tenant", Object: t.Name, To: "set"}}, nil
}

func (s *State) deleteTenant(name string) ([]Event, error) {
	for _, m := range s.Models {
		if m.Spec.Tenant == name {
			return nil, fmt.Errorf("tenant %q still has model %q; delete it first: %w", name, m.Spec.Name, ErrConflict)
		}
	}
	for _, j := range s.Jobs {
		if j.Spec.Tenant == name && !j.Phase.Ended() {
			return nil, fmt.Errorf("tenant %q still has job %q; cancel it first: %w", name, j.Spec.Name, ErrConflict)
		}
	}
	for id, k := range s.Keys {
		if k.Tenant == name {
			delete(s.Keys, id)
		}
	}
	return deleteFrom(s.Tenants, name, "tenant")
}

func (s *State) putKey(k *KeySpec) ([]Event, error) {
	if s.Tenants[k.Tenant] == nil {
		return nil, fmt.Errorf("tenant %q of key %q: %w", k.Tenant, k.ID, ErrUnknown)
	}
	s.Keys[k.ID] = k
	return []Event{{Kind: "key", Object: k.ID, To: "set"}}, nil
}

func (s *State) setLimits(c *SetLimits) ([]Event, error) {
	if c.Key != "" {
		old := s.Keys[c.Key]
		if old == nil {
			return nil, fmt.Errorf("key %q: %w", c.Key, ErrUnknown)
		}
		next := *old
		next.Limits = c.Limits
		s.Keys[c.Key] = &next
		return []Event{{Kind: "key", Object: c.Key, To: "limited"}}, nil
	}
	old := s.Tenants[c.Tenant]
	if old == nil {
		return nil, fmt.Errorf("tenant %q: %w", c.Tenant, ErrUnknown)
	}
	next := *old
	next.Limits = c.Limits
	s.Tenants[c.Tenant] = &next
	return []Event{{Kind: "tenant", Object: c.Tenant, To: "limited"}}, nil
}

func (s *State) putModel(m *ModelSpec) ([]Event, error) {
	if s.Tenants[m.Tenant] == nil {
		return nil, fmt.Errorf("tenant %q of model %q: %w", m.Tenant, m.Name, ErrUnknown)
	}
	old := s.Models[m.Name]
	if old == nil {
		s.Models[m.Name] = &Model{Spec: *m, Version: 1}
		return []Event{{Kind: "model", Object: m.Name, Model: m.Name, To: "v1"}}, nil
	}
	if old.Deleting {
		return nil, fmt.Errorf("model %q is being deleted; wait until its replicas are gone: %w", m.Name, ErrConflict)
	}
	from := "v" + itoa(old.Version)
	if !sameEngine(&old.Spec, m) {
		old.Version++
		old.Failures, old.RetryAtMs = 0, 0
	}
	old.Spec = *m
	return []Event{{Kind: "model", Object: m.Name, Model: m.Name, From: from, To: "v" + itoa(old.Version)}}, nil
}

func (s *State) deleteModel(name string) ([]Event, error) {
	m := s.Models[name]
	if m == nil {
		return nil, fmt.Errorf("model %q: %w", name, ErrUnknown)
	}
	for _, r := range s.Replicas {
		if r.Model == name {
			m.Deleting = true
			return []Event{{Kind: "model", Object: name, Model: name, To: "deleting"}}, nil
		}
	}
	delete(s.Models, name)
	return []Event{{Kind: "model", Object: name, Model: name, To: "deleted"}}, nil
}

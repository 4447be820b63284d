package router

import (
	"bytes"
	"slices"
	"strings"
)

// Target is what a name in a request stands for.
type Target struct {
	Model   *Model // of the table: do not change it
	Version string // the only version that may serve it; empty: any
	Adapter string // the engine's name for it; empty: the model itself
}

// Resolve finds what a name stands for. In this order:
//
//   - a model's name or alias;
//   - an adapter's name, which may hold slashes and colons;
//   - BASE:ADAPTER, where BASE is a name or an alias;
//   - BASE:VERSION, with or without a leading v.
//
// BASE ends at any colon, the last tried first, since aliases may hold some. A target without a model is unknown; one
// whose model is known but not what follows it comes with ok false and the model, so that the caller can say what there
// is. It allocates nothing.
func (t *Table) Resolve(name []byte) (target Target, ok bool) {
	if t == nil {
		return Target{}, false
	}
	if m := t.byName[string(name)]; m != nil {
		return Target{Model: m}, true
	}
	if target, ok = t.adapters[string(name)]; ok {
		return target, true
	}
	for end := bytes.LastIndexByte(name, ':'); end > 0; end = bytes.LastIndexByte(name[:end], ':') {
		m := t.byName[string(name[:end])]
		if m == nil {
			continue
		}
		rest := name[end+1:]
		for _, adapter := range m.Adapters {
			if adapter == string(rest) {
				return Target{Model: m, Adapter: adapter}, true
			}
		}
		if version, ok := m.version(rest); ok {
			return Target{Model: m, Version: version}, true
		}
		if target.Model == nil {
			target.Model = m
		}
	}
	return target, false
}

// version finds a version that the model has now: the current one, one with a weight, or that of a ready replica. An
// old version is gone with its last ready replica, as draining ones take nothing new.
func (m *Model) version(name []byte) (string, bool) {
	for _, known := range m.known {
		if known == string(name) || (len(name) > 1 && name[0] == 'v' && known == string(name[1:])) {
			return known, true
		}
	}
	return "", false
}

// KnownVersions returns the versions that requests may name, sorted; the slice belongs to the table.
func (m *Model) KnownVersions() []string { return m.known }

// learnVersions fills in known.
func (m *Model) learnVersions() {
	m.known = nil
	add := func(v string) {
		if v != "" && !slices.Contains(m.known, v) {
			m.known = append(m.known, v)
		}
	}
	add(m.Current)
	for _, v := range m.Versions {
		add(v.Version)
	}
	for i := range m.Replicas {
		if i == 0 || m.Replicas[i].Version != m.Replicas[i-1].Version {
			add(m.Replicas[i].Version)
		}
	}
	slices.Sort(m.known)
}

// Has reports that the model's engines have an API that not every engine has, as registry.ModelSpec.Speaks names it.
func (m *Model) Has(api string) bool { return slices.Contains(m.Speaks, api) }

// Allows reports that the request may go to the replica: no other one was asked for, nor another version.
func (r *Request) Allows(replica *Replica) bool {
	return (r.Only == "" || r.Only == replica.ID) && (r.Version == "" || r.Version == replica.Version)
}

// versionGroup is the stretch of replicas of one version, empty when there is none.
func (m *Model) versionGroup(version string) group {
	from, _ := slices.BinarySearchFunc(m.Replicas, version, func(r Replica, v string) int { return strings.Compare(r.Version, v) })
	to := from
	for to < len(m.Replicas) && m.Replicas[to].Version == version {
		to++
	}
	return group{from: from, to: to, weight: 1}
}

package main

import (
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"sluice/gateway"
	"sluice/nodes"
	"sluice/nodes/registry"
	"sluice/router"
	"sluice/slo"
)

// tableOf builds the routing table from the facts: ready replicas, and one
// external replica for each model that someone else runs.
func tableOf(s *registry.State) (*router.Table, error) {
	var models []router.Model
	byModel := map[string][]router.Replica{}
	for _, id := range slices.Sorted(maps.Keys(s.Replicas)) {
		r := s.Replicas[id]
		m, n := s.Models[r.Model], s.Nodes[r.Node]
		if r.Phase != registry.ReplicaReady || m == nil || n == nil || n.Lost {
			continue
		}
		byModel[r.Model] = append(byModel[r.Model], router.Replica{ID: r.ID, Addr: r.Addr, Node: r.Node, Version: versionName(r.Version),
			UpstreamModel: m.Spec.EngineModel, AgentAddr: n.AgentAddr, MaxInFlight: m.Spec.MaxInFlight})
	}
	for _, name := range slices.Sorted(maps.Keys(s.Models)) {
		m := s.Models[name]
		if m.Deleting {
			continue
		}
		if m.Spec.URL != "" {
			byModel[name] = []router.Replica{external(m)}
		}
		models = append(models, router.Model{Name: name, Aliases: m.Spec.Aliases, Adapters: m.Spec.Adapters, Speaks: m.Spec.Speaks,
			RequestTimeoutMs: m.Spec.RequestTimeoutMs, FirstTokenMs: m.Spec.FirstTokenMs, Current: versionName(m.Version), Replicas: byModel[name]})
	}
	return router.NewTable(models)
}

func versionName(v int64) string { return strconv.FormatInt(v, 10) }

// external is the replica that stands for a url: never leased, slept or stopped. Requests bring their /v1 along, so one
// at the end of the url is not said twice.
func external(m *registry.Model) router.Replica {
	addr := m.Spec.URL
	if u, err := url.Parse(addr); err == nil {
		addr = u.Host
		if u.Port() == "" {
			addr += ":80"
		}
		addr += strings.TrimSuffix(strings.TrimRight(u.EscapedPath(), "/"), "/v1")
	}
	return router.Replica{ID: m.Spec.Name + "-url", Addr: addr, Version: versionName(m.Version), UpstreamModel: m.Spec.EngineModel,
		MaxInFlight: m.Spec.MaxInFlight, External: true}
}

// meterModels tells the meter what models there are and how many replicas of
// each are ready now.
func meterModels(s *registry.State, horizonMs func(model string) (wakeMs, coldMs int64)) []gateway.MeterModel {
	ready := map[string]int{}
	for _, r := range s.Replicas {
		if r.Phase == registry.ReplicaReady {
			ready[r.Model]++
		}
	}
	out := make([]gateway.MeterModel, 0, len(s.Models))
	for _, name := range slices.Sorted(maps.Keys(s.Models)) {
		m := s.Models[name]
		if m.Deleting {
			continue
		}
		n := ready[name]
		if m.Spec.URL != "" {
			n = 1
		}
		wakeMs, coldMs := horizonMs(name)
		if m.Spec.Sleep == nodes.SleepNone {
			wakeMs = coldMs
		}
		out = append(out, gateway.MeterModel{
			Model:         slo.Model{Name: name, Objectives: m.Spec.Objectives, MinReplicas: m.Spec.MinReplicas, MaxInFlight: m.Spec.MaxInFlight},
			ReadyReplicas: n, HorizonMs: wakeMs, ColdHorizonMs: coldMs,
		})
	}
	return out
}

package main

import (
	"slices"
	"sync/atomic"

	"sluice/gateway"
	"sluice/nodes/registry"
)

// keyTable is the gateway's immutable table of keys, swapped when facts change.
// The zero value has no keys. Safe for concurrent use.
type keyTable struct {
	byHash atomic.Pointer[map[string]gateway.Key]
}

func (k *keyTable) set(s *registry.State) {
	next := make(map[string]gateway.Key, len(s.Keys))
	for _, spec := range s.Keys {
		weight, tenantLimits := 1.0, gateway.Limits{}
		if t := s.Tenants[spec.Tenant]; t != nil {
			weight, tenantLimits = t.Weight, t.Limits
		}
		next[spec.HashHex] = gateway.Key{ID: spec.ID, Tenant: spec.Tenant, Models: slices.Clone(spec.Models), ClassCeiling: spec.ClassCeiling,
			Limits: spec.Limits, TenantLimits: tenantLimits, TenantWeight: weight}
	}
	k.byHash.Store(&next)
}

// Lookup implements gateway.Keys.
func (k *keyTable) Lookup(hash []byte) (gateway.Key, bool) {
	m := k.byHash.Load()
	if m == nil {
		return gateway.Key{}, false
	}
	key, ok := (*m)[string(hash)]
	return key, ok
}

// Empty implements gateway.Keys.
func (k *keyTable) Empty() bool {
	m := k.byHash.Load()
	return m == nil || len(*m) == 0
}

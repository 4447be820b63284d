package gateway

import (
	"fmt"
	"sync/atomic"
	"testing"

	"sluice/gateway/quota"
)

// BenchmarkLedgers is what limits cost a request when many cores charge one tenant (worst), and when they charge many.
func BenchmarkLedgers(b *testing.B) {
	for _, tenants := range []int{1, 64} {
		b.Run(fmt.Sprint("tenants=", tenants), func(b *testing.B) {
			var ls ledgers
			ls.open()
			var who atomic.Int64
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				tenant := fmt.Sprint("t", int(who.Add(1))%tenants)
				ask := quota.Ask{Key: "k" + tenant, Tenant: tenant, KeyLimits: manyLimits, TenantLimits: manyLimits, PromptTokens: 9, Writes: true}
				var h quota.Hold
				for now := int64(1_795_000_000_000); pb.Next(); now++ {
					x := ls.of(tenant)
					x.mu.Lock()
					x.l.Reserve(&h, &ask, now)
					x.mu.Unlock()
					x.mu.Lock()
					x.l.Settle(&h, quota.Use{Model: "m", Input: 9, Output: 30}, now)
					x.mu.Unlock()
				}
			})
		})
	}
}

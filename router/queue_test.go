package router

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"

	"sluice/slo"
)

// The scenarios of testdata/queue are the order in words: who is next, and who gives way.
func TestQueueScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/queue", func(t *testing.T, path string) {
		q := NewQueue(4)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return scenario(t, q, d) })
	})
}

func scenario(t *testing.T, q *Queue, d *datadriven.TestData) string {
	var out strings.Builder
	switch d.Cmd {
	case "push":
		for _, text := range strings.Split(d.Input, "\n") {
			var name, tenant, class string
			it := &Item{}
			if _, err := fmt.Sscanf(text, "%s %s %s %d %f", &name, &tenant, &class, &it.DeadlineMs, &it.WorkMs); err != nil {
				d.Fatalf(t, "want name, tenant, class, deadline, work: %v", err)
			}
			var err error
			if it.Class, err = slo.ParseClass(class); err != nil {
				d.Fatalf(t, "%v", err)
			}
			it.Tenant, it.Ref = tenant, name
			displaced, ok := q.Push(it)
			if displaced != nil {
				fmt.Fprintf(&out, "%s gives way to %s\n", displaced.Ref, name)
			}
			if !ok {
				fmt.Fprintf(&out, "%s is refused\n", name)
			}
		}
	case "take":
		for it := q.Head(); it != nil; it = q.Head() {
			q.Take(it)
			fmt.Fprintf(&out, "%s\n", it.Ref)
			if d.HasArg("one") {
				break
			}
		}
	case "expire":
		var nowMs int64
		d.ScanArgs(t, "now", &nowMs)
		next := q.Expire(nowMs, func(it *Item) { fmt.Fprintf(&out, "%s is late\n", it.Ref) })
		fmt.Fprintf(&out, "next %d\n", next)
	default:
		d.Fatalf(t, "unknown command %s", d.Cmd)
	}
	fmt.Fprintf(&out, "%d wait\n", q.Len())
	return out.String()
}

// Whatever is pushed, taken and removed, counts and heaps agree and nobody of a lower class goes first.
func TestQueueHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := NewQueue(rapid.IntRange(1, 20).Draw(t, "limit"))
		inside := map[*Item]bool{}
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0, 1:
				it := &Item{
					Class: slo.Class(rapid.IntRange(0, 2).Draw(t, "class")), Tenant: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "tenant"),
					WorkMs: float64(rapid.IntRange(1, 9).Draw(t, "work")), DeadlineMs: int64(rapid.IntRange(0, 5).Draw(t, "deadline")),
				}
				displaced, ok := q.Push(it)
				if displaced != nil {
					if !inside[displaced] || displaced.Class <= it.Class {
						t.Fatalf("displaced %+v for %+v", displaced, it)
					}
					delete(inside, displaced)
				}
				if ok {
					inside[it] = true
				}
			case 2:
				if it := q.Head(); it != nil {
					for other := range inside {
						if other.Class < it.Class {
							t.Fatalf("%v is next while %v waits", it.Class, other.Class)
						}
						if other.Class == it.Class && other.Tenant == it.Tenant && other.before(it) {
							t.Fatalf("within a tenant %+v is next, %+v waits", it, other)
						}
					}
					q.Take(it)
					delete(inside, it)
				}
			case 3:
				for it := range inside {
					q.Remove(it)
					q.Remove(it)
					delete(inside, it)
					break
				}
			}
			n, work := q.AheadOf(slo.Batch)
			want := 0.0
			for it := range inside {
				want += it.WorkMs
			}
			if n != len(inside) || q.Len() != n || math.Abs(work-want) > 1e-6 {
				t.Fatalf("%d inside with %v ms, counted %d and %d with %v ms", len(inside), want, q.Len(), n, work)
			}
		}
	})
}

// Tenants that always have someone waiting get work in proportion to their weights, however they ask.
func TestShareFollowsWeight(t *testing.T) {
	q := NewQueue(1000)
	weights := map[string]float64{"a": 1, "b": 1, "c": 3}
	workOf := map[string]float64{"a": 10, "b": 1, "c": 5}
	push := func(tenant string) {
		q.Push(&Item{Tenant: tenant, Weight: weights[tenant], WorkMs: workOf[tenant], Class: slo.Standard})
	}
	for range 100 {
		push("a")
	}
	for tenant := range weights {
		push(tenant)
	}
	served, total := map[string]float64{}, 0.0
	for range 3000 {
		it := q.Head()
		q.Take(it)
		served[it.Tenant] += it.WorkMs
		total += it.WorkMs
		push(it.Tenant)
	}
	for tenant, weight := range weights {
		if share := served[tenant] / total; math.Abs(share-weight/5) > 0.02 {
			t.Errorf("%s with weight %v of 5 got %.3f of the work", tenant, weight, share)
		}
	}
}

package agent

import (
	"context"
	"fmt"
	"testing"

	"sluice/nodes"
	"sluice/nodes/agent/cgroup"
	"sluice/nodes/simgpu"
)

// An agent killed at any moment of a start leaves a holder that runs once or
// never: the next agent finds which, and a repeated order starts no second one.
func TestKilledInMidStart(t *testing.T) {
	s := newSite(t, 1)
	tree := cgroup.Find("n1-" + digest8(s.args.Data))
	s.spawn()
	for i, afterMs := range []int64{1, 4, 8, 12, 16, 24, 40} {
		spec := s.job(fmt.Sprintf("h%d", i), []string{"G0"}, "sleeper")
		order := nodes.Order{ID: fmt.Sprintf("start%d", i), Term: 1, Kind: nodes.OrderStart, Holder: spec.ID, Generation: 1, Spec: spec}
		s.send(order)
		wait(context.Background(), afterMs)
		s.kill9()
		s.spawn()
		// What a leader does: an id not answered is sent again. A refusal means
		// that the holder was never begun, and then it is told as gone.
		refused := s.order(order).Err
		var st nodes.HolderStatus
		eventually(t, "it runs or has ended", func() bool {
			st = s.status(spec.ID)
			_, active := s.used("G0")
			return st.State == nodes.StateGone || st.State == nodes.StateRunning && active
		})
		if refused != "" && st.State != nodes.StateGone {
			t.Errorf("refused with %q, and %s", refused, st.State)
		}
		t.Logf("killed after %d ms: %s %s", afterMs, st.State, st.Reason)
		if st.State == nodes.StateRunning {
			if pids, err := tree.Group(spec.ID).Pids(); tree.Real() && (err != nil || len(pids) != 1) {
				t.Errorf("%s: processes %v, %v", spec.ID, pids, err)
			}
			s.do(nodes.OrderKill, spec)
			s.await(spec.ID, nodes.StateGone)
		}
		s.do(nodes.OrderForget, spec)
	}
	if v, err := simgpu.Violations(s.args.Sim); err != nil || len(v) != 0 {
		t.Errorf("two active holders: %+v %v", v, err)
	}
}

package agent

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"sluice/nodes"
	"sluice/nodes/simgpu"
)

// lease asks for a lease as a gateway does.
func (s *site) lease(method, replica, gateway string) int {
	s.t.Helper()
	url := "http://" + s.lastHello().Node.AgentAddr + "/v1/leases/" + replica
	if method == http.MethodDelete {
		url += "?gateway=" + gateway
	}
	req, _ := http.NewRequest(method, url, strings.NewReader(fmt.Sprintf(`{"gateway":%q}`, gateway)))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	return resp.StatusCode
}

func (s *site) used(uuid string) (bytes int64, active bool) {
	s.t.Helper()
	all, err := simgpu.Read(s.args.Sim)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, r := range all {
		if r.UUID == uuid {
			for _, p := range r.Procs {
				active = active || p.Active
			}
			return r.UsedBytes, active
		}
	}
	return 0, false
}

// A replica starts, sleeps behind its leases, and wakes.
func TestReplicaSleepsBehindLeases(t *testing.T) {
	s := newSite(t, 1)
	s.start()
	rep := s.replica("r", "G0")
	port := s.begin(nodes.OrderStart, rep).Port
	st := s.await("r", nodes.StateReady)
	if st.Port != port || port == 0 {
		t.Fatalf("port %d, answered %d", st.Port, port)
	}
	if c := s.lease(http.MethodPost, "r", "g1"); c != 200 {
		t.Fatalf("lease: %d", c)
	}
	if c := s.lease(http.MethodPost, "r", "g2"); c != 200 {
		t.Fatalf("lease: %d", c)
	}
	s.do(nodes.OrderSleep, rep)
	if c := s.lease(http.MethodPost, "r", "g3"); c != 409 {
		t.Fatalf("a new lease while draining: %d", c)
	}
	eventually(t, "it says what it waits for", func() bool { return strings.Contains(s.status("r").Reason, "waits for 2 leases") })
	// g1 still has requests in flight and renews; g2 is silent until it expires.
	renewals := 0
	eventually(t, "g2 expires", func() bool {
		renewals++
		if c := s.lease(http.MethodPost, "r", "g1"); c != 409 {
			t.Fatalf("renewal while draining: %d", c)
		}
		return strings.Contains(s.status("r").Reason, "waits for 1 lease")
	})
	if _, active := s.used("G0"); !active || s.status("r").State != nodes.StateReady {
		t.Fatalf("slept with a lease out: %+v", s.status("r"))
	}
	if c := s.lease(http.MethodDelete, "r", "g1"); c != 204 {
		t.Fatalf("return: %d", c)
	}
	s.await("r", nodes.StateAsleep)
	if bytes, active := s.used("G0"); active || bytes != engineResident {
		t.Fatalf("asleep: %d bytes, active %v", bytes, active)
	}
	if c := s.lease(http.MethodPost, "r", "g1"); c != 409 {
		t.Fatalf("lease on a sleeper: %d", c)
	}
	s.do(nodes.OrderWake, rep)
	s.await("r", nodes.StateReady)
	if bytes, active := s.used("G0"); !active || bytes != engineActive {
		t.Fatalf("awake: %d bytes, active %v", bytes, active)
	}
	if c := s.lease(http.MethodPost, "r", "g1"); c != 200 {
		t.Fatalf("lease after waking: %d", c)
	}
	s.lease(http.MethodDelete, "r", "g1")
	s.do(nodes.OrderStop, rep)
	s.await("r", nodes.StateGone)
}

// A gang runs beside a sleeping replica; the replica may not wake before the
// gang is proved quiet, and then may.
func TestWakeNeedsQuietGang(t *testing.T) {
	s := newSite(t, 1)
	s.start()
	rep, gang := s.replica("r", "G0"), s.trainer("a", "G0")
	s.begin(nodes.OrderStart, rep)
	s.await("r", nodes.StateReady)
	if a := s.order(nodes.Order{Kind: nodes.OrderPrepare, Holder: "a", Generation: 1, Spec: gang}); !strings.Contains(a.Err, "held by r") {
		t.Fatalf("%+v", a)
	}
	s.do(nodes.OrderSleep, rep)
	s.await("r", nodes.StateAsleep)
	s.begin(nodes.OrderPrepare, gang)
	s.begin(nodes.OrderStart, gang)
	s.await("a", nodes.StateRunning)
	if a := s.order(nodes.Order{Kind: nodes.OrderWake, Holder: "r", Generation: 1}); !strings.Contains(a.Err, "held by a") {
		t.Fatalf("%+v", a)
	}
	s.stopAt("a", "s1", nodes.StopYield)
	s.await("a", nodes.StateYielded)
	s.do(nodes.OrderWake, rep)
	s.await("r", nodes.StateReady)
	if a := s.order(nodes.Order{Kind: nodes.OrderRankResume, Holder: "a", Generation: 1, StopID: "s1"}); !strings.Contains(a.Err, "held by r") {
		t.Fatalf("%+v", a)
	}
	s.do(nodes.OrderSleep, rep)
	s.await("r", nodes.StateAsleep)
	s.must(nodes.Order{Kind: nodes.OrderRankResume, Holder: "a", Generation: 1, StopID: "s1"})
	s.note("a", "resumed", "s1")
	s.await("a", nodes.StateRunning)
	if v, err := simgpu.Violations(s.args.Sim); err != nil || len(v) != 0 {
		t.Fatalf("two active holders: %+v %v", v, err)
	}
}

// FILL-20: a wake that fails leaves the replica asleep, with nothing more than
// its resident memory on the GPU.
func TestCase_FILL_20_WakeFails(t *testing.T) {
	s := newSite(t, 1)
	s.start()
	rep := s.replica("r", "G0")
	rep.Env["ENGINE_NO_WAKE"] = "1"
	s.begin(nodes.OrderStart, rep)
	s.await("r", nodes.StateReady)
	s.do(nodes.OrderSleep, rep)
	s.await("r", nodes.StateAsleep)
	s.do(nodes.OrderWake, rep)
	eventually(t, "the failure is told", func() bool { return strings.Contains(s.status("r").Reason, "wake failed") })
	if st := s.status("r"); st.State != nodes.StateAsleep {
		t.Errorf("%+v", st)
	}
	if bytes, active := s.used("G0"); active || bytes != engineResident {
		t.Errorf("%d bytes, active %v", bytes, active)
	}
	s.do(nodes.OrderKill, rep)
	s.await("r", nodes.StateGone)
}

// An engine that says it sleeps and computes on is not asleep; one that refuses
// to sleep goes on serving.
func TestSleepIsProved(t *testing.T) {
	s := newSite(t, 2)
	s.start()
	loud, never := s.replica("loud", "G0"), s.replica("never", "G1")
	loud.Env["ENGINE_LOUD_SLEEP"], never.Env["ENGINE_NO_SLEEP"] = "1", "1"
	for _, r := range []*nodes.HolderSpec{loud, never} {
		s.begin(nodes.OrderStart, r)
		s.await(r.ID, nodes.StateReady)
		s.do(nodes.OrderSleep, r)
	}
	eventually(t, "it is not believed", func() bool { return strings.Contains(s.status("loud").Reason, "computes on G0") })
	if st := s.status("loud"); st.State == nodes.StateAsleep {
		t.Errorf("%+v", st)
	}
	eventually(t, "the refusal is told", func() bool { return strings.Contains(s.status("never").Reason, "sleep failed") })
	if c := s.lease(http.MethodPost, "never", "g1"); c != 200 {
		t.Errorf("it does not serve on: %d", c)
	}
}

// A resident that takes more than it declared is ended.
func TestResidentExceeds(t *testing.T) {
	s := newSite(t, 1)
	s.start()
	rep := s.replica("r", "G0")
	s.begin(nodes.OrderStart, rep)
	st := s.await("r", nodes.StateReady)
	s.do(nodes.OrderSleep, rep)
	s.await("r", nodes.StateAsleep)
	// Behind the agent's back.
	resp, err := http.Post(fmt.Sprintf("http://127.0.0.1:%d/wake_up", st.Port), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if st := s.await("r", nodes.StateGone); !strings.Contains(st.Reason, "resident ended") {
		t.Errorf("%+v", st)
	}
}

// RT-11: an engine that does not answer is unwell, and is not ended for it.
func TestCase_RT_11_UnwellIsNotEnded(t *testing.T) {
	s := newSite(t, 1)
	s.start()
	rep := s.replica("r", "G0")
	rep.Replica.HealthPath = "/health"
	s.begin(nodes.OrderStart, rep)
	st := s.await("r", nodes.StateReady)
	// Asleep behind the agent's back: health answers 503.
	resp, err := http.Post(fmt.Sprintf("http://127.0.0.1:%d/sleep", st.Port), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if st := s.await("r", nodes.StateUnwell); !strings.Contains(st.Reason, "503") {
		t.Errorf("%+v", st)
	}
	resp, err = http.Post(fmt.Sprintf("http://127.0.0.1:%d/wake_up", st.Port), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	s.await("r", nodes.StateReady)
	if now := s.status("r"); now.Pid != st.Pid {
		t.Errorf("restarted: %+v", now)
	}
}

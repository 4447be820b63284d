package agent

import (
	"strings"
	"testing"
)

func num[T any](v T) *T { return &v }

// proc is a process of a holder on a device.
func proc(pid int, holder string, bytes int64, active bool) DeviceProc {
	return DeviceProc{PID: pid, holder: holder, name: "python3", UsedBytes: num(bytes), Active: num(active)}
}

func device(used int64, procs ...DeviceProc) observation {
	return observation{devices: []DeviceReading{{UUID: "G0", UsedBytes: num(used), UtilPercent: num(0), Procs: procs}}}
}

const gib = 1 << 30

func TestJudgeGone(t *testing.T) {
	me := claim{id: "a", gpus: []string{"G0"}, use: useActive, activeBytes: 40 * gib}
	other := claim{id: "b", gpus: []string{"G0"}, use: useResident, activeBytes: 60 * gib, residentBytes: 8 * gib}
	unknown := device(9*gib, DeviceProc{PID: 2, holder: "b"})
	undeclared := other
	undeclared.activeBytes = 0
	cases := []struct {
		name   string
		obs    observation
		others []claim
		want   string // part of the reason; empty: gone
	}{
		{"nothing left", device(gib / 2), nil, ""},
		{"a process of the group", observation{pids: []int{7, 8}}, nil, "pid 7, pid 8"},
		{"a pid on the device", device(gib, proc(7, "a", gib, false)), nil, "pid 7 is still on G0"},
		{"memory of nobody", device(3 * gib), nil, "still uses"},
		{"memory of another, known", device(9*gib, proc(2, "b", 8*gib+gib/2, false)), []claim{other}, ""},
		{"memory beyond another's", device(20*gib, proc(2, "b", 8*gib, false)), []claim{other}, "still uses"},
		{"no figures, within declared", unknown, []claim{other}, "still uses"},
		{"no figures, undeclared", unknown, []claim{undeclared}, ""},
		{"no reading", observation{}, nil, "no reading"},
		{"lost device", observation{devices: []DeviceReading{{UUID: "G0", Lost: true}}}, nil, ""},
		{"unreadable device", observation{devices: []DeviceReading{{UUID: "G0", Err: "boom"}}}, nil, "boom"},
	}
	if got := judgeGone(me, device(3*gib), nil, nil); got != "" {
		t.Errorf("no baseline: %q", got)
	}
	for _, c := range cases {
		got := judgeGone(me, c.obs, c.others, map[string]int64{"G0": gib / 2})
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestJudgeQuiet(t *testing.T) {
	me := claim{id: "a", gpus: []string{"G0"}, use: useActive, activeBytes: 40 * gib, residentBytes: 10 * gib}
	other := claim{id: "b", gpus: []string{"G0"}, use: useActive}
	busy := device(5*gib, DeviceProc{PID: 7, holder: "a"})
	busy.devices[0].UtilPercent = num(30)
	cases := []struct {
		name   string
		obs    observation
		others []claim
		want   string
	}{
		{"quiet", device(10*gib, proc(7, "a", 10*gib, false)), nil, ""},
		{"computes", device(10*gib, proc(7, "a", 10*gib, true)), nil, "computes"},
		{"another computes", device(10*gib, proc(8, "b", 10*gib, true)), []claim{other}, ""},
		{"holds too much", device(20*gib, proc(7, "a", 12*gib, false)), nil, "declared"},
		{"busy, nobody else", busy, nil, "30% busy"},
		{"busy, another is active", busy, []claim{other}, ""},
	}
	for _, c := range cases {
		got := judgeQuiet(me, c.obs, c.others)
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestJudgeFree(t *testing.T) {
	me := claim{id: "a", gpus: []string{"G0"}, use: useActive, activeBytes: 50 * gib, residentBytes: 20 * gib}
	sleeper := claim{id: "b", gpus: []string{"G0"}, use: useResident, activeBytes: 60 * gib, residentBytes: 10 * gib}
	bigger, undeclared, active, elsewhere := sleeper, sleeper, sleeper, sleeper
	bigger.residentBytes = 31 * gib
	undeclared.activeBytes = 0
	active.use = useActive
	elsewhere.use, elsewhere.gpus = useActive, []string{"G1"}
	on := device(10*gib, proc(2, "b", 10*gib, false))
	cases := []struct {
		name   string
		obs    observation
		others []claim
		want   string
	}{
		{"empty", device(0), nil, ""},
		{"beside a sleeper", on, []claim{sleeper}, ""},
		{"another elsewhere", device(0), []claim{elsewhere}, ""},
		{"sleeper too big", device(31*gib, proc(2, "b", 31*gib, false)), []claim{bigger}, "declare"},
		{"sleeper undeclared", on, []claim{undeclared}, "not declared"},
		{"held", on, []claim{active}, "held by b"},
		{"sleeper computes", device(10*gib, proc(2, "b", 10*gib, true)), []claim{sleeper}, "computes"},
		{"own old process", device(0, proc(2, "a", 0, false)), nil, "still on"},
		{"foreign", device(0, proc(2, "", 0, false)), nil, "pid 2 (python3)"},
		{"memory is not there", device(40 * gib), nil, "are used"},
		{"lost", observation{devices: []DeviceReading{{UUID: "G0", Lost: true}}}, nil, "lost"},
		{"XID", observation{devices: []DeviceReading{{UUID: "G0", XID: 48}}}, nil, "XID 48"},
		{"an application's XID", observation{devices: []DeviceReading{{UUID: "G0", XID: 31}}}, nil, ""},
	}
	for _, c := range cases {
		got := judgeFree(me, c.obs, c.others, map[string]int64{"G0": 80 * gib}, true)
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	if got := judgeFree(claim{id: "a", gpus: []string{"G7"}}, device(0), nil, map[string]int64{"G0": 1}, true); got == "" {
		t.Error("a GPU of another node was given away")
	}
}

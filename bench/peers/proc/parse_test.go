package proc

import (
	"maps"
	"testing"
)

func TestParseStat(t *testing.T) {
	pid, session, ok := parseStat("4242 (nginx: a (b) c) S 4241 4240 4239 0 -1 4194560 83 0 0 0")
	if !ok || pid != 4242 || session != 4239 {
		t.Error(pid, session, ok)
	}
	for _, bad := range []string{"", "1 sh S 1", "1 (sh", "1 (sh) S 1", "x (sh) S 1 2 3"} {
		if _, _, ok := parseStat(bad); ok {
			t.Errorf("%q was read", bad)
		}
	}
}

func TestParseRSS(t *testing.T) {
	if got := parseRSS("Name:\tx\nVmHWM:\t  900 kB\nVmRSS:\t   512 kB\n"); got != 512<<10 {
		t.Error(got)
	}
	if got := parseRSS("Name:\tkthread\n"); got != 0 {
		t.Error(got)
	}
}

func TestParseCalls(t *testing.T) {
	got, err := ParseCalls(`strace: Process 12 attached
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 60.00    0.006000           3      2000       100 read
 40.00    0.004000           4      1000           write
------ ----------- ----------- --------- --------- ----------------
100.00    0.010000                  3000       100 total
`)
	if err != nil || !maps.Equal(got, Calls{"read": {2000, 100}, "write": {1000, 0}}) {
		t.Error(got, err)
	}
	if s := got.Each(1000); s != "read 2.00 (0.10 in vain), write 1.00" {
		t.Error(s)
	}
	if _, err := ParseCalls("strace: attach: not permitted\n"); err == nil {
		t.Error("nothing was read without an error")
	}
}

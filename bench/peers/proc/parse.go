package proc

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// parseStat reads the process and its session from /proc/PID/stat. A program's name may hold spaces and brackets.
func parseStat(s string) (pid, session int, ok bool) {
	open, end := strings.IndexByte(s, '('), strings.LastIndexByte(s, ')')
	if open < 0 || end < open {
		return 0, 0, false
	}
	pid, err := strconv.Atoi(strings.TrimSpace(s[:open]))
	f := strings.Fields(s[end+1:])
	if err != nil || len(f) < 4 {
		return 0, 0, false
	}
	session, err = strconv.Atoi(f[3]) // state, parent, group, session
	return pid, session, err == nil
}

// parseRSS reads VmRSS from /proc/PID/status, in bytes; 0 without.
func parseRSS(s string) int64 {
	for line := range strings.SplitSeq(s, "\n") {
		v, ok := strings.CutPrefix(line, "VmRSS:")
		if !ok {
			continue
		}
		kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(v), "kB")), 10, 64)
		if err != nil {
			return 0
		}
		return kb << 10
	}
	return 0
}

// Calls is how often each kernel call was made.
type Calls map[string]Call

// Call is one kernel call's count; Failed ones (EAGAIN, mostly) are among Made.
type Call struct{ Made, Failed int }

// fewest is how often a call must have been made for each thing done to be named.
const fewest = 0.02

// Each lists the calls for each of n things done, the most frequent first; rare ones are left out.
func (c Calls) Each(n float64) string {
	names := slices.SortedFunc(maps.Keys(c), func(a, b string) int {
		return cmp.Or(cmp.Compare(c[b].Made, c[a].Made), cmp.Compare(a, b))
	})
	var b strings.Builder
	for _, name := range names {
		if float64(c[name].Made)/n < fewest {
			break
		}
		fmt.Fprintf(&b, ", %s %.2f", name, float64(c[name].Made)/n)
		if c[name].Failed > 0 {
			fmt.Fprintf(&b, " (%.2f in vain)", float64(c[name].Failed)/n)
		}
	}
	return strings.TrimPrefix(b.String(), ", ")
}

// ParseCalls reads strace's summary (-c).
func ParseCalls(out string) (Calls, error) {
	calls := Calls{}
	for line := range strings.SplitSeq(out, "\n") {
		f := strings.Fields(line)
		if len(f) < 5 || len(f) > 6 || f[len(f)-1] == "total" || !strings.Contains(f[0], ".") {
			continue
		}
		made, err := strconv.Atoi(f[3])
		if err != nil {
			continue
		}
		c := Call{Made: made}
		if len(f) == 6 {
			if c.Failed, err = strconv.Atoi(f[4]); err != nil {
				return nil, fmt.Errorf("proc: strace's line %q is not understood", line)
			}
		}
		calls[f[len(f)-1]] = c
	}
	if len(calls) == 0 {
		return nil, fmt.Errorf("proc: strace counted nothing: %.200q", out)
	}
	return calls, nil
}

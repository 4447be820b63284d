package peer

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// The programs check their own configurations.
func TestConfigurationsAreTaken(t *testing.T) {
	checks := map[string]func(args []string) []string{
		"nginx":   func(args []string) []string { return append(args, "-t", "-q") },
		"haproxy": func(args []string) []string { return append([]string{"-c", "-q"}, args...) },
		"caddy":   func(args []string) []string { return append([]string{"adapt"}, args[1:]...) },
	}
	for _, p := range All() {
		if p.Program == "" {
			continue
		}
		t.Run(p.Name, func(t *testing.T) {
			if m := p.Missing(); m != "" {
				t.Skipf("%s is not on PATH", m)
			}
			for _, engines := range [][]string{{"127.0.0.1:9001"}, {"127.0.0.1:9001", "127.0.0.1:9002"}} {
				port, err := freePort()
				if err != nil {
					t.Fatal(err)
				}
				c, err := p.start(&Setup{Dir: t.TempDir(), Engines: engines}, port)
				if err != nil {
					t.Fatal(err)
				}
				cmd := exec.Command(c.Name, checks[c.Name](slices.Clone(c.Args))...)
				cmd.Env = append(cmd.Environ(), c.Env...)
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%d engines: %v\n%s", len(engines), err, out)
				}
			}
		})
	}
}

func TestPeersHaveNamesOfTheirOwn(t *testing.T) {
	var names []string
	for _, p := range All() {
		if slices.Contains(names, p.Name) || strings.ContainsAny(p.Name, "/\\,") {
			t.Errorf("the name %q", p.Name)
		}
		names = append(names, p.Name)
	}
}
